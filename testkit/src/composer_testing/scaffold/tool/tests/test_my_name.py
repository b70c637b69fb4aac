"""The tool keeps its kind's contract, and does what it is for in a sandbox."""

import asyncio

import pytest

from composer_core import ToolContext, Tree
from composer_core.errors import PathError
from composer_core.protocols import TemplateSpec
from composer_core.sandbox import Sandbox
from composer_plugin_my_name.plugin import composer_tools, my_name
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.tools import ToolContract
from composer_testing.fakes.sandbox import MemoryProvider


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(ToolContract):
    spec = next(iter(composer_tools()))


def call(path: str) -> str:
    """The tool's text for a file of a small workspace, in a sandbox in memory."""
    tree = Tree.of({"notes/a.txt": "one two\n  three\n", "empty.txt": ""})

    async def body() -> str:
        provider = MemoryProvider()
        (created,) = await provider.create(await provider.prepare(TemplateSpec(tree.ref), tree))
        async with Sandbox(created.backend, "fakes/memory", tree) as sandbox:
            return await my_name(ToolContext(sandbox, state={}), path)

    return asyncio.run(body())


@pytest.mark.parametrize(("path", "text"), [("notes/a.txt", "3 words"), ("empty.txt", "0 words")])
def test_words_are_what_white_space_parts(path, text):
    assert call(path) == text


def test_a_missing_file_is_left_to_the_framework_which_tells_the_model():
    with pytest.raises(PathError):
        call("nowhere.txt")
