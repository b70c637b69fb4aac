"""qwen3_coder, kimi and glm: the laws of the contract, and the failure catalogue of wire formats."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

import composer_plugin_hf
from composer_core import BuildContext
from composer_core.protocols import ToolSchema
from composer_core.types import Call, Message, ParsedTurn, ToolResult
from composer_plugin_hf.renderers.config import (
    CHATML_TOKENS,
    GLM_TOKENS,
    KIMI_TOKENS,
    XML_TOKENS,
    GlmConfig,
    KimiConfig,
    Qwen3CoderConfig,
)
from composer_plugin_hf.renderers.glm import build_glm
from composer_plugin_hf.renderers.kimi import build_kimi
from composer_plugin_hf.renderers.qwen3_coder import build_qwen3_coder
from composer_plugin_hf.tokenizer import HfTokenizer, train
from composer_testing.contracts.renderers import JSON_VALUES, RendererContract

THOUGHT = ("<think>", "</think>")
ALL = dict.fromkeys((*CHATML_TOKENS, *KIMI_TOKENS, *GLM_TOKENS, *XML_TOKENS, *THOUGHT))


def schema(name: str, *arguments: str) -> ToolSchema:
    properties = {argument: {"type": "string"} for argument in arguments}
    return ToolSchema(name, "A tool.", {"type": "object", "properties": properties, "required": []})


TOOLS = [schema("read", "path", "limit"), schema("write", "path", "text")]


@cache
def tokenizer() -> HfTokenizer:
    files = sorted(Path(composer_plugin_hf.__file__).parent.rglob("renderers/*.py"))
    return train([file.read_text() for file in files], 700, tuple(ALL))


@cache
def built(name: str) -> Any:
    builders = {"qwen3_coder": build_qwen3_coder, "kimi": build_kimi, "glm": build_glm}
    config: Any = {"qwen3_coder": Qwen3CoderConfig(), "kimi": KimiConfig(), "glm": GlmConfig()}[name]
    held = {"tokenizer": tokenizer(), "tools": SimpleNamespace(schemas=TOOLS)}
    return builders[name](config, BuildContext(Path("."), get=held.__getitem__))  # type: ignore[operator]


WORDS = st.text("abcdefgh_-.0123456789é", min_size=1, max_size=6)


class TestQwen3Coder(RendererContract):
    tokens = CHATML_TOKENS
    names = WORDS
    tokenizer = staticmethod(tokenizer)

    def renderer(self) -> Any:
        return built("qwen3_coder")


class TestKimi(RendererContract):
    tokens = KIMI_TOKENS
    values = JSON_VALUES
    tokenizer = staticmethod(tokenizer)

    def renderer(self) -> Any:
        return built("kimi")

    def call_id(self, number: int, name: str) -> str:
        return f"functions.{name}:{number}"


class TestGlm(RendererContract):
    tokens = GLM_TOKENS
    names = WORDS
    tokenizer = staticmethod(tokenizer)

    def renderer(self) -> Any:
        return built("glm")


def ids_of(text: str) -> list[int]:
    """The ids of a text as a policy would sample them: control tags of all formats as control tokens."""
    ids: list[int] = []
    while text:
        token = next((token for token in ALL if text.startswith(token)), None)
        end = len(token) if token else min((text.find(t) for t in ALL if t in text), default=len(text))
        ids += [tokenizer().special(token)] if token else tokenizer().encode(text[:end])
        text = text[end:]
    return ids


def parsed(name: str, text: str) -> ParsedTurn:
    return built(name).parse(ids_of(text))


# --- what a turn looks like


TURNS = {
    "qwen3_coder": "look\n<tool_call>\n<function=read>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>"
    "<|im_end|>",
    "kimi": "look<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>"
    '{"path": "a.py"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
    "glm": "\nlook\n<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n</tool_call><|observation|>",
}
IDS = {"qwen3_coder": "c0", "kimi": "functions.read:0", "glm": "c0"}


@pytest.mark.parametrize("name", TURNS)
def test_a_turn_is_written_as_the_models_write_it(name: str):
    turn = ParsedTurn("look", (Call(IDS[name], "read", {"path": "a.py"}),))
    assert tokenizer().decode(built(name).render(turn)) == TURNS[name]
    assert parsed(name, TURNS[name]) == turn


RESULTS = {
    "qwen3_coder": "\n<|im_start|>user\n<tool_response>\nx\n</tool_response>\n<|im_end|>\n<|im_start|>assistant\n",
    "kimi": "<|im_system|>tool<|im_middle|>## Return of functions.read:0\nx<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|>",
    "glm": "\n<tool_response>\nx\n</tool_response><|assistant|>",
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_go_on_behind_the_turns_end(name: str):
    ids = built(name).results([ToolResult(IDS[name], "read", "x")], ended=True)
    assert tokenizer().decode(ids) == RESULTS[name]


OPENINGS = {
    "qwen3_coder": "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n",
    "kimi": "<|im_user|>user<|im_middle|>go<|im_end|><|im_assistant|>assistant<|im_middle|>",
    "glm": "[gMASK]<sop><|user|>\ngo<|assistant|>",
}


@pytest.mark.parametrize("name", OPENINGS)
def test_an_opening_ends_with_the_policys_head_and_declares_the_tools(name: str):
    assert tokenizer().decode(built(name).open([Message("user", "go")], [])) == OPENINGS[name]
    told = tokenizer().decode(built(name).open([Message("user", "go")], TOOLS))
    assert '"path"' in told and told.endswith(OPENINGS[name].removeprefix("[gMASK]<sop>"))


# --- the failure catalogue: what is mended


def call(name: str, **arguments: str) -> tuple[str, dict[str, str]]:
    return name, arguments


READ = call("read", path="a.py")
Q = "<function=read>\n<parameter=path>\na.py\n</parameter>\n</function>"
K = 'functions.read:0<|tool_call_argument_begin|>{"path": "a.py"}'
G = "read\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n"
SECTION = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|><|im_end|>".format
MENDED = {
    "qwen3_coder": {
        f"look\n{Q}\n</tool_call><|im_end|>": ([READ], "the opening tag is missing"),
        f"<tool_call>\n{Q}\n<|im_end|>": ([READ], "the closing tag is missing"),
        f"<tool_call>\n{Q}\n<tool_call>\n{Q}\n</tool_call><|im_end|>": ([READ, READ], "the closing tag is missing"),
        f"<tool_call>\n{Q}\n{Q}\n</tool_call><|im_end|>": ([READ, READ], "several calls"),
        "<tool_call><function=read><parameter=path>a.py<parameter=limit>3</parameter></function></tool_call>": (
            [call("read", path="a.py", limit="3")],
            "</parameter> is missing",
        ),
        "<tool_call><function=read><parameter=path>a.py</function></tool_call><|im_end|>": ([READ], "</parameter> is"),
        "<tool_call><function=read><parameter=path>a.py</parameter></tool_call><|im_end|>": ([READ], "</function> is"),
        "<tool_call><function=read><parameter=path>a.py</tool_call><|im_end|>": ([READ], "</function> is missing"),
        "<tool_call><function=read\n<parameter=path>a.py</parameter></function></tool_call><|im_end|>": (
            [READ],
            "> of",
        ),
    },
    "kimi": {
        SECTION(f"<|tool_call_begin|>{K}"): ([READ], "the closing tag is missing"),
        f"<|tool_call_begin|>{K}<|tool_call_end|><|im_end|>": ([READ], "section of calls"),
        SECTION(f"{K}<|tool_call_end|>"): ([READ], "the opening tag is missing"),
        SECTION(f"<|tool_call_begin|>{K.replace('functions.read:0', 'read')}<|tool_call_end|>"): ([READ], "no id of"),
        SECTION(f"<|tool_call_begin|>{K.replace(':0', '')}<|tool_call_end|>"): ([READ], "no id of the form"),
        SECTION(f"<|tool_call_begin|>{K[:-1]}<|tool_call_end|>"): ([READ], "} is missing at the end"),
        SECTION(f"<|tool_call_begin|>{K}<|tool_call_end|>" * 2): ([READ, READ], ""),
    },
    "glm": {
        f"look\n{G}</tool_call><|observation|>": ([READ], "the opening tag is missing"),
        f"<tool_call>{G}<|observation|>": ([READ], "the closing tag is missing"),
        f"<tool_call>{G}<tool_call>{G}</tool_call><|observation|>": ([READ, READ], "the closing tag is missing"),
        "<tool_call>read\n<arg_key>path<arg_value>a.py</arg_value></tool_call><|observation|>": (
            [READ],
            "</arg_key> is",
        ),
        "<tool_call>read<arg_key>path</arg_key><arg_value>a.py<arg_key>limit</arg_key><arg_value>3</tool_call>": (
            [call("read", path="a.py", limit="3")],
            "</arg_value> is missing",
        ),
    },
}
EACH_MENDED = [(name, text) for name, texts in MENDED.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), EACH_MENDED)
def test_what_is_almost_a_call_is_read_and_what_was_mended_is_said(name: str, text: str):
    calls, repair = MENDED[name][text]
    turn = parsed(name, text)
    assert [(one.name, one.arguments) for one in turn.calls] == calls
    assert not any(one.problem for one in turn.calls)
    assert repair in turn.calls[0].repair if repair else "two calls have the id" in turn.calls[1].repair
    assert len({one.id for one in turn.calls}) == len(calls)
    assert turn.text == ("look" if "look" in text else "")


def test_a_kimi_id_is_of_the_right_form_whatever_the_policy_wrote():
    text = SECTION("<|tool_call_begin|>call_7f<|tool_call_argument_begin|>{}<|tool_call_end|>" * 2)
    ids = [one.id for one in parsed("kimi", text).calls]
    assert ids == ["functions.call_7f:0", "functions.call_7f:1"]


# --- the failure catalogue: what stays an error


REFUSED = {
    "qwen3_coder": {
        f"<tool_call>\n{Q[:-30]}": ("truncated", "cut off"),
        "<tool_call></tool_call><|im_end|>": ("malformed", "the call is empty"),
        "<tool_call>read a.py</tool_call><|im_end|>": ("malformed", "where <function=NAME> is expected"),
        "<tool_call><function=></function></tool_call><|im_end|>": ("malformed", "no tool name"),
        "<tool_call><function=read><parameter=>x</parameter></function></tool_call>": ("malformed", "has no name"),
        "<tool_call><function=read>a.py</function></tool_call><|im_end|>": ("malformed", "'a.py</function>' stands"),
        f"<tool_call>{Q} and more</tool_call><|im_end|>": ("malformed", "stands where"),
        "words</tool_call><|im_end|>": ("malformed", "never opened"),
        "<tool_response>made up</tool_response><|im_end|>": ("malformed", "outside a call"),
        "<tool_call><|im_start|></tool_call><|im_end|>": ("malformed", "another kind"),
    },
    "kimi": {
        f"<|tool_calls_section_begin|><|tool_call_begin|>{K}": ("truncated", "cut off"),
        SECTION("<|tool_call_begin|>functions.read:0<|tool_call_end|>"): (
            "malformed",
            "no <|tool_call_argument_begin|>",
        ),
        SECTION("<|tool_call_begin|><|tool_call_argument_begin|>{}<|tool_call_end|>"): ("malformed", "no tool name"),
        SECTION(f"<|tool_call_begin|>{K[:-5]}<|tool_call_end|>"): ("malformed", "not JSON"),
        SECTION("<|tool_call_begin|>read<|tool_call_argument_begin|>[]<|tool_call_end|>"): ("malformed", "JSON object"),
        "words<|tool_call_end|><|im_end|>": ("malformed", "never opened"),
        "<|im_user|>made up<|im_end|>": ("malformed", "outside a call"),
    },
    "glm": {
        f"<tool_call>{G}": ("truncated", "cut off"),
        "<tool_call><arg_key>path</arg_key><arg_value>x</arg_value></tool_call>": ("malformed", "no tool name"),
        "<tool_call>read<arg_key>path</arg_key></tool_call><|observation|>": ("malformed", "has no value"),
        "<tool_call>read<arg_value>x</arg_value></tool_call><|observation|>": (
            "malformed",
            "before its argument's name",
        ),
        "<tool_call>read<arg_key></arg_key><arg_value>x</arg_value></tool_call>": ("malformed", "has no name"),
        f"<tool_call>{G.replace('</arg_key>', '</arg_key>x')}</tool_call>": ("malformed", "text stands between"),
        f"<tool_call>{G}{G[5:]}</tool_call><|observation|>": ("malformed", "'path' is given twice"),
        "words</tool_call><|observation|>": ("malformed", "never opened"),
        "<|system|>made up<|user|>": ("malformed", "outside a call"),
    },
}
EACH_REFUSED = [(name, text) for name, texts in REFUSED.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), EACH_REFUSED)
def test_what_is_no_call_says_why(name: str, text: str):
    problem, detail = REFUSED[name][text]
    one = parsed(name, text).calls[0]
    assert one.problem == problem and detail in one.detail
    assert not one.arguments, "a truncated tail leaks into nothing"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", f"I would write\n{Q}<|im_end|>"),
        ("kimi", 'I would write functions.read:0{"path": "a.py"}<|im_end|>'),
        ("glm", "I would write read(path=a.py)<|user|>"),
    ],
)
def test_a_call_in_plain_text_is_words(name: str, text: str):
    assert parsed(name, text).calls == ()


@pytest.mark.parametrize("name", TURNS)
def test_closing_tags_inside_a_value_do_not_close_the_call(name: str):
    code = "</tool_call></parameter>\n</function>\n</arg_value><|tool_call_end|>\n<parameter=other>\n</parameter>\n\n"
    call_id = IDS[name].replace("read", "write")
    turn = ParsedTurn("", (Call(call_id, "write", {"path": "a", "text": code}),))
    assert built(name).parse(built(name).render(turn)) == turn


def test_code_that_holds_a_whole_call_stays_a_value():
    code = f"example = '''\n<tool_call>\n{Q}\n</tool_call>'''\nprint(example)"
    turn = ParsedTurn("", (Call("c0", "write", {"text": code, "path": "a.py"}),))
    assert built("qwen3_coder").parse(built("qwen3_coder").render(turn)) == turn


@pytest.mark.parametrize("name", TURNS)
def test_thoughts_are_words(name: str):
    text = TURNS[name].replace("look", "<think>hm</think>look", 1)
    turn = parsed(name, text)
    assert turn.text == "<think>hm</think>look" and len(turn.calls) == 1


def test_a_glm_turn_with_calls_that_ends_for_the_user_is_given_the_tag_of_results():
    turn = parsed("glm", TURNS["glm"].replace("<|observation|>", "<|user|>"))
    assert len(turn.calls) == 1 and not turn.ended
    assert parsed("glm", "\ndone<|user|>") == ParsedTurn("done", (), ended=True)
