"""The tool keeps its kind's contract, and does what it is for in a sandbox."""

import asyncio

import pytest

from composer_core import ToolContext
from composer_core.errors import PathError
from composer_plugin_my_name.plugin import composer_tools, my_name
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.tools import ToolContract
from composer_testing.fakes.sandbox import sandbox_of


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(ToolContract):
    spec = next(iter(composer_tools()))


def call(path: str) -> str:
    """The tool's text for a file of a small workspace, in a sandbox in memory."""
    sandbox = sandbox_of({"notes/a.txt": "one two\n  three\n", "empty.txt": ""})
    return asyncio.run(my_name(ToolContext(sandbox, state={}), path))


@pytest.mark.parametrize(("path", "text"), [("notes/a.txt", "3 words"), ("empty.txt", "0 words")])
def test_words_are_what_white_space_parts(path, text):
    assert call(path) == text


def test_a_missing_file_is_left_to_the_framework_which_tells_the_model():
    with pytest.raises(PathError):
        call("nowhere.txt")
