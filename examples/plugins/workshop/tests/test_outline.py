"""The tool keeps its kind's contract, and shows what a file holds."""

import asyncio

import pytest

from composer_core import ToolContext, ToolError, ToolOutput
from composer_core.errors import PathError
from composer_plugin_workshop.outline import MOST_BYTES, outline
from composer_plugin_workshop.plugin import composer_tools
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.tools import ToolContract
from composer_testing.fakes.sandbox import sandbox_of

SOURCE = '''\
import os

LIMIT = 3


class Stack(list):
    """A stack."""

    class Empty(Exception):
        pass

    def push(self, item, *, twice: bool = False):
        def inner():
            pass
        self.append(item)


async def fetch(url: str, *rest):
    return url
'''


class TestHookModule(HookModuleContract):
    module = "composer_plugin_workshop.plugin"


class TestOutline(ToolContract):
    spec = next(iter(composer_tools()))


def call(path: str, **files: str | bytes) -> ToolOutput:
    """What the tool says about `path` in a sandbox in memory that holds these files."""
    sandbox = sandbox_of({f"{name}.py": text for name, text in files.items()})
    return asyncio.run(outline(ToolContext(sandbox, state={}), path))


def test_classes_functions_and_methods_stand_with_their_lines():
    assert call("a.py", a=SOURCE).text.splitlines() == [
        "6-15 class Stack(list)",
        "9-10   class Empty(Exception)",
        "12-15   def push(self, item, *, twice: bool=False)",
        "18-19 async def fetch(url: str, *rest)",
    ]


def test_a_file_without_any_says_so():
    assert call("a.py", a="x = 1\n").text == "no classes or functions"


def test_facts_for_rewards_stand_beside_the_text():
    assert call("a.py", a=SOURCE).data == {"outlined": "a.py", "entries": 4}


@pytest.mark.parametrize("source", ["def f(:\n", "x = '\0'\n", "(" * 5000, "# coding: nonsense\n", b"\xff\xfe = 1\n"])
def test_what_cannot_be_parsed_is_told_to_the_model(source):
    with pytest.raises(ToolError, match=r"a\.py cannot be parsed"):
        call("a.py", a=source)


def test_a_syntax_error_names_its_line():
    with pytest.raises(ToolError, match=r"a\.py, line 2"):
        call("a.py", a="x = 1\ndef f(:\n")


def test_a_file_made_to_keep_the_host_busy_is_refused():
    with pytest.raises(ToolError, match="read a part of it"):
        call("a.py", a="x = 1\n" * MOST_BYTES)


def test_a_missing_file_is_left_to_the_framework_which_tells_the_model():
    with pytest.raises(PathError):
        call("nowhere.py")
