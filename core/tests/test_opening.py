"""A provider is opened without a run as strictly as in one, and leaves nothing behind."""

import asyncio

import pytest

from composer_core.errors import CheckError, ConfigError, PluginError, SandboxGone, TemplateMissing
from composer_core.opening import open_sandboxes
from composer_core.trees import Tree
from composer_core.types import TaskView

TREE = Tree.of({"a.txt": "one\n"})


def test_what_is_made_of_an_offered_workspace_is_gone_at_the_end():
    async def main():
        async with open_sandboxes("fakes/memory") as sandboxes:
            made = await sandboxes.create(TaskView("one", "", sandboxes.offer(TREE)))
            assert await made.read("a.txt") == b"one\n"
            with pytest.raises(TemplateMissing, match="not offered"):
                await sandboxes.create(TaskView("two", "", Tree.of({"b.txt": ""}).ref))
        with pytest.raises(SandboxGone):
            await made.read("a.txt")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("use", "settings", "error", "said"),
    [
        ("nobody/knows", {}, PluginError, "nobody"),
        ("local/namespace", {}, ConfigError, "did you mean 'local/namespaces'"),
        ("fakes/memory", {"size": 1}, ConfigError, "unknown key size"),
        ("local/process", {}, CheckError, "isolates nothing"),
    ],
)
def test_what_a_run_would_refuse_is_refused(use, settings, error, said):
    async def main():
        async with open_sandboxes(use, settings):
            raise AssertionError("it was opened")

    with pytest.raises(error, match=said):
        asyncio.run(main())
