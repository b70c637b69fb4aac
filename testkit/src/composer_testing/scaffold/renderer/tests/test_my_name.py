"""The renderer keeps the laws of its kind, and writes what its docstring shows."""

from functools import cache
from pathlib import Path

import pytest

from composer_core import BuildContext, NoConfig
from composer_core.errors import ConfigError
from composer_core.types import Call, Message, ParsedTurn, ToolResult
from composer_plugin_my_name.plugin import CALL, END
from composer_plugin_my_name.renderer import MyNameRenderer
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.renderers import JSON_VALUES, RendererContract
from composer_testing.fakes.text import ByteTokenizer


def build(tokenizer: ByteTokenizer) -> MyNameRenderer:
    return MyNameRenderer(NoConfig(), BuildContext(Path("."), get={"tokenizer": tokenizer}.__getitem__))


@cache
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer((CALL, END))


@cache
def renderer() -> MyNameRenderer:
    return build(tokenizer())


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(RendererContract):
    tokens = (CALL, END)
    values = JSON_VALUES
    renderer = staticmethod(renderer)
    tokenizer = staticmethod(tokenizer)


def ids(*pieces: str) -> list[int]:
    """Control tags as control tokens, everything else as text."""
    known = tokenizer()
    return [id for text in pieces for id in ([known.special(text)] if text in (CALL, END) else known.encode(text))]


def test_an_episode_is_what_the_docstring_shows():
    turn = ParsedTurn("Let me look.", (Call("c0", "read", {"path": "a.py"}),))
    assert renderer().open([Message("user", "repair it")], []) == ids("user: repair it", END, "agent:\n")
    body = '{"name": "read", "arguments": {"path": "a.py"}}'
    assert renderer().render(turn) == ids("Let me look.", CALL, body, END)
    result = ToolResult("c0", "read", "x = 1")
    assert renderer().results([result], ended=True) == ids("result: x = 1", END, "agent:\n")


@pytest.mark.parametrize(
    "body", ["", "read a.py", "[]", '{"name": "", "arguments": {}}', '{"name": "a"}', "[" * 100_000]
)
def test_a_call_that_cannot_be_read_is_told_to_the_model(body):
    (call,) = renderer().parse(ids(CALL, body, END)).calls
    assert call.problem == "malformed"
    assert "cannot be read" in call.detail


def test_a_tokenizer_without_the_control_tokens_is_refused():
    with pytest.raises(ConfigError, match="call"):
        build(ByteTokenizer())
