"""The demonstrator says the turns that solve a task, each when it is due."""

import asyncio
from typing import Any

import pytest

from composer_core import BuildContext, File, NoConfig, Patch
from composer_core.errors import SamplerError
from composer_core.types import GenerateRequest, GenerateSettings
from composer_plugin_workshop.guide import Guide
from composer_testing.fakes.text import ByteTokenizer, LineRenderer

ANSWER = Patch((File("pkg/a.py", b"x = 1\n"), File("notes.txt", b"done\n")))
RENDERER = LineRenderer(ByteTokenizer())


class Tasks:
    """Knows the answer to everything."""

    def gold(self, task_id: str) -> Patch:
        return ANSWER


@pytest.fixture
def guide(tmp_path):
    parts: dict[str, Any] = {"tasks": Tasks(), "renderers": RENDERER}
    return Guide(NoConfig(), BuildContext(tmp_path, get=parts.__getitem__))


def say(guide: Guide, position: int, max_tokens: int = 1000) -> list[int]:
    request = GenerateRequest("session", position=position, task_id="any")
    completion = asyncio.run(guide.generate([], GenerateSettings(max_tokens), request))
    assert len(completion.ids) == len(completion.logprobs) == completion.versions[0][1]
    return list(completion.ids.values())


def test_it_looks_at_each_file_writes_the_answer_and_finishes(guide):
    said, calls = 0, []
    for _ in range(6):
        row = say(guide, said)
        said += len(row)
        calls += RENDERER.parse(row).calls
    assert [(call.name, dict(call.arguments)) for call in calls] == [
        ("read_file", {"path": "notes.txt"}),
        ("write_file", {"path": "notes.txt", "content": "done\n"}),
        ("outline", {"path": "pkg/a.py"}),
        ("read_file", {"path": "pkg/a.py"}),
        ("write_file", {"path": "pkg/a.py", "content": "x = 1\n"}),
        ("finish", {}),
    ]
    assert guide.stats() == {"tokens": said}
    with pytest.raises(SamplerError, match="nothing left to say"):
        say(guide, said)


def test_nothing_is_remembered_so_an_attempt_can_be_issued_again(guide):
    assert say(guide, 0) == say(guide, 0)


def test_a_turn_that_is_cut_goes_on_where_it_was(guide):
    whole = say(guide, 0)
    assert say(guide, 0, max_tokens=5) == whole[:5]
    assert say(guide, 5) == whole[5:]
