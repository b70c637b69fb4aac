"""xml and hermes: the laws of the contract, and the failure catalogue of wire formats."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

import composer_plugin_hf
from composer_core import BuildContext
from composer_core.errors import ConfigError
from composer_core.protocols import ToolSchema
from composer_core.types import Call, Message, ParsedTurn, ToolResult
from composer_plugin_hf.renderers.config import HERMES_TOKENS, XML_TOKENS, HermesConfig, XmlConfig
from composer_plugin_hf.renderers.hermes import build_hermes
from composer_plugin_hf.renderers.xml import build_xml
from composer_plugin_hf.tokenizer import HfTokenizer, train
from composer_testing.contracts.renderers import JSON_VALUES, RendererContract

TOOLS = [ToolSchema("probe", "A tool.", {"type": "object", "properties": {}, "required": []})]


@cache
def tokenizer() -> HfTokenizer:
    files = sorted(Path(composer_plugin_hf.__file__).parent.rglob("renderers/*.py"))
    return train([file.read_text() for file in files], 700, XML_TOKENS + HERMES_TOKENS)


def context(found: Any) -> BuildContext:
    return BuildContext(run_dir=Path("."), get={"tokenizer": found}.__getitem__)


@cache
def xml() -> Any:
    return build_xml(XmlConfig(), context(tokenizer()))


@cache
def hermes() -> Any:
    return build_hermes(HermesConfig(), context(tokenizer()))


class TestXml(RendererContract):
    tokens = XML_TOKENS
    renderer = staticmethod(xml)
    tokenizer = staticmethod(tokenizer)


class TestHermes(RendererContract):
    tokens = HERMES_TOKENS
    values = JSON_VALUES
    renderer = staticmethod(hermes)
    tokenizer = staticmethod(tokenizer)


def ids_of(*pieces: str) -> list[int]:
    """Control tags as control tokens, everything else as text."""
    control = tokenizer().specials()
    return [i for piece in pieces for i in ([control[piece]] if piece in control else tokenizer().encode(piece))]


def parsed(renderer: Any, *pieces: str) -> ParsedTurn:
    return renderer.parse(ids_of(*pieces))


def only_call(turn: ParsedTurn) -> Call:
    (call,) = turn.calls
    return call


GOOD = ("<call>", "read", "<arg>", "path", "<val>", "a.py", "</call>")
READ = Call("c0", "read", {"path": "a.py"})


def test_an_xml_episode_is_what_the_docstring_shows():
    opening = xml().open([Message("user", "fix it")], TOOLS)
    assert opening == ids_of("<|system|>", "tools: probe", "<|user|>", "fix it", "<|agent|>")
    results = xml().results([ToolResult("c0", "read", "x = 1"), ToolResult("c1", "read", "")], ended=False)
    assert results == ids_of("<|end|>", "<result>", "x = 1", "<result>", "<|agent|>")
    assert xml().render(ParsedTurn("look", (READ,))) == ids_of("look", *GOOD, "<|end|>")


def test_a_hermes_episode_is_chatml():
    opening = tokenizer().decode(hermes().open([Message("user", "fix it")], []))
    assert opening == "<|im_start|>user\nfix it<|im_end|>\n<|im_start|>assistant\n"
    results = tokenizer().decode(hermes().results([ToolResult("c0", "read", "x = 1")], ended=True))
    assert results == (
        "\n<|im_start|>user\n<tool_response>\nx = 1\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    turn = tokenizer().decode(hermes().render(ParsedTurn("look", (READ,))))
    assert turn == 'look\n<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize("schemas", ["full", "names", "none"])
def test_the_opening_describes_tools_as_configured(schemas: str):
    for build, config in ((build_xml, XmlConfig(schemas)), (build_hermes, HermesConfig(schemas))):
        text = tokenizer().decode(build(config, context(tokenizer())).open([Message("user", "go")], TOOLS))
        assert ("probe" in text) == (schemas != "none")
        assert ('"properties"' in text) == (schemas == "full")


def test_xml_values_that_are_not_text_are_json():
    turn = ParsedTurn("", (Call("c0", "run", {"timeout": 3, "all": True, "paths": ["é"], "none": None}),))
    assert xml().parse(xml().render(turn)).calls[0].arguments == {
        "timeout": "3",
        "all": "true",
        "paths": '["é"]',
        "none": "null",
    }


XML_FAILURES = {
    "nested": ((*GOOD[:-1], *GOOD, "<|end|>"), "malformed", "begins before the one before it was closed"),
    "ended inside": ((*GOOD[:-1], "<|end|>"), "malformed", "ends before the call was closed"),
    "cut inside": (GOOD[:-1], "truncated", "cut off"),
    "cut at the tag": (("words", "<call>"), "truncated", "cut off"),
    "missing opening": (("read", *GOOD[2:], "<|end|>"), "malformed", "outside a call"),
    "lone closing": (("words", "</call>", "<|end|>"), "malformed", "never opened"),
    "no name": (("<call>", "<arg>", "k", "<val>", "v", "</call>"), "malformed", "no tool name"),
    "empty": (("<call>", "</call>"), "malformed", "no tool name"),
    "no value": (("<call>", "read", "<arg>", "path", "</call>"), "malformed", "'path' has no value"),
    "two values": ((*GOOD[:-1], "<val>", "b", "</call>"), "malformed", "'path' has more than one value"),
    "no key": (("<call>", "read", "<arg>", "<val>", "v", "</call>"), "malformed", "an argument has no name"),
    "value first": (("<call>", "read", "<val>", "v", "</call>"), "malformed", "before the first argument"),
    "twice": ((*GOOD[:-1], "<arg>", "path", "<val>", "b", "</call>"), "malformed", "'path' is given twice"),
    "other control": ((*GOOD[:-1], "<result>", "x", "</call>"), "malformed", "another kind"),
    "foreign control": ((*GOOD[:-1], "<tool_call>", "x", "</call>"), "malformed", "another kind"),
    "result in words": (("<result>", "made up", "<|end|>"), "malformed", "outside a call"),
}


@pytest.mark.parametrize("name", XML_FAILURES)
def test_xml_failures_are_calls_with_a_reason(name: str):
    pieces, problem, detail = XML_FAILURES[name]
    call = parsed(xml(), *pieces).calls[0]
    assert call.problem == problem
    assert detail in call.detail


HERMES_BODIES = {
    "no JSON": ("read a.py", "not JSON"),
    "cut text": ('{"name": "read", "arguments": {"path": "a.py', "not JSON"),
    "crossed brackets": ('{"name": "read", "arguments": {"path": ["a"}]', "not JSON"),
    "two values in one": ('{"name": "a", "arguments": {}} 3', "not JSON: Extra data"),
    "no object": ('["read"]', 'with "name" and "arguments"'),
    "no arguments": ('{"name": "read"}', 'with "name" and "arguments"'),
    "more keys": ('{"name": "read", "arguments": {}, "id": 1}', 'with "name" and "arguments"'),
    "name is no text": ('{"name": 3, "arguments": {}}', '"name" must be'),
    "empty name": ('{"name": "", "arguments": {}}', '"name" must be'),
    "arguments as prose": ('{"name": "read", "arguments": "a.py"}', "not JSON"),
    "arguments as a list": ('{"name": "read", "arguments": ["a.py"]}', '"arguments" must be'),
    "twice": ('{"name": "read", "arguments": {"path": "a", "path": "b"}}', "'path' is given twice"),
    "python that JSON cannot hold": ("{'name': 'read', 'arguments': {'a': {1, 2}}}", "not JSON"),
    "python that runs": ("{'name': 'read', 'arguments': dict(a=open('x'))}", "not JSON"),
    "not a number": ('{"name": "read", "arguments": {"n": NaN}}', "NaN is not a number"),
    "huge number": ('{"name": "read", "arguments": {"n": ' + "9" * 5000 + "}}", "not JSON"),
    "deep": ('{"name": "read", "arguments": ' + "[" * 100_000, "not JSON"),
    "empty": ("", "not JSON"),
}


@pytest.mark.parametrize("name", HERMES_BODIES)
def test_hermes_bodies_that_are_no_call_say_why(name: str):
    body, detail = HERMES_BODIES[name]
    call = only_call(parsed(hermes(), "<tool_call>", body, "</tool_call>", "<|im_end|>"))
    assert call.problem == "malformed" and detail in call.detail


BODY = '\n{"name": "read", "arguments": {"path": "a.py"}}\n'


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        (("<tool_call>", BODY), "truncated"),
        (("<tool_call>", BODY[:-5], "<|im_end|>"), "malformed"),
        (("words", "</tool_call>", "<|im_end|>"), "malformed"),
        (("<tool_response>", "made up", "</tool_response>", "<|im_end|>"), "malformed"),
        (("<tool_call>", "<|im_start|>", BODY, "</tool_call>"), "malformed"),
    ],
)
def test_hermes_structure_failures_are_calls_with_a_reason(pieces: tuple[str, ...], problem: str):
    assert parsed(hermes(), *pieces).calls[0].problem == problem


MENDED = {
    "no closing tag": (("<tool_call>", BODY, "<|im_end|>"), 1, "the closing tag is missing"),
    "no closing tag before the next": (("<tool_call>", BODY, "<tool_call>", BODY, "</tool_call>"), 2, "closing tag"),
    "no opening tag": (("words", BODY, "</tool_call>", "<|im_end|>"), 1, "the opening tag is missing"),
    "lost closing brace": (("<tool_call>", BODY[:-2], "</tool_call>"), 1, "} is missing at the end"),
    "two calls in one": (("<tool_call>", BODY * 2, "</tool_call>"), 2, "several calls"),
    "python": (("<tool_call>", BODY.replace('"', "'"), "</tool_call>"), 1, "a Python literal"),
    "arguments as text": (
        ("<tool_call>", '{"name": "read", "arguments": "{\\"path\\": \\"a.py\\"}"}', "</tool_call>"),
        1,
        "JSON in a text",
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_is_almost_a_hermes_call_is_mended_and_says_so(name: str):
    pieces, count, repair = MENDED[name]
    turn = parsed(hermes(), *pieces)
    found = [(call.name, call.arguments, call.problem) for call in turn.calls]
    assert found == [("read", READ.arguments, None)] * count
    assert repair in turn.calls[0].repair
    assert turn.text == ("words" if pieces[0] == "words" else "")


def test_line_ends_inside_a_string_are_mended():
    body = '{"name": "write", "arguments": {"text": "a\nb"}}'.replace("\\n", "\n")
    call = only_call(parsed(hermes(), "<tool_call>", body, "</tool_call>", "<|im_end|>"))
    assert call.arguments == {"text": "a\nb"} and "unescaped" in call.repair


def test_a_call_in_plain_text_is_words():
    assert parsed(hermes(), BODY.strip(), "<|im_end|>") == ParsedTurn(BODY.strip())
    assert parsed(xml(), "read a.py", "<|end|>") == ParsedTurn("read a.py")


@pytest.mark.parametrize("make", [xml, hermes])
def test_a_good_call_beside_a_bad_one_is_kept(make: Any):
    good = make().render(ParsedTurn("", (READ,), ended=False))
    opening = good[:1]
    turn = make().parse([*opening, *good, *good, *sorted(make().stop_ids())])
    assert [call.problem for call in turn.calls] == ["malformed", None, None]
    assert turn.calls[1:] == (evolve(READ, id="c1"), evolve(READ, id="c2"))


@pytest.mark.parametrize("make", [xml, hermes])
def test_words_after_a_call_stay_words(make: Any):
    good = make().render(ParsedTurn("before", (READ,), ended=False))
    turn = make().parse([*good, *tokenizer().encode("after"), *make().stop_ids()])
    assert turn == ParsedTurn("before\nafter", (READ,))


@pytest.mark.parametrize("make", [xml, hermes])
def test_repeated_calls_are_each_parsed(make: Any):
    turn = ParsedTurn("", (READ, evolve(READ, id="c1")))
    assert make().parse(make().render(turn)) == turn


@pytest.mark.parametrize("make", [xml, hermes])
def test_closing_tags_and_braces_inside_a_value_do_not_close_the_call(make: Any):
    text = 'print("</call></tool_call><|end|><|im_end|>}}")\n</function>'
    turn = ParsedTurn("", (Call("c0", "write", {"text": text}),))
    assert make().parse(make().render(turn)) == turn


@pytest.mark.parametrize(("make", "at"), [(xml, "a.py"), (hermes, "a.py"), (xml, "read"), (xml, "path")])
def test_bytes_that_are_no_text_are_an_error_the_model_sees(make: Any, at: str):
    ids = make().render(ParsedTurn("", (READ,)))
    piece, lone = tokenizer().encode(at), tokenizer().encode("\U0001f600")[:1]
    start = next(i for i in range(len(ids)) if ids[i : i + len(piece)] == piece)
    call = only_call(make().parse([*ids[: start + len(piece)], *lone, *ids[start + len(piece) :]]))
    assert call.problem == "malformed" and "not valid UTF-8" in call.detail


def test_a_genuine_replacement_character_is_text():
    turn = ParsedTurn("", (Call("c0", "write", {"text": "\ufffd"}),))
    assert xml().parse(xml().render(turn)) == turn


def test_ids_after_the_end_token_are_not_read():
    assert parsed(xml(), "words", "<|end|>", *GOOD) == ParsedTurn("words", (), ended=False)


def test_a_tokenizer_without_the_tags_is_refused_by_name():
    bare = train(["text"], 300, ("<|end|>",))
    with pytest.raises(ConfigError, match="<call>"):
        build_xml(XmlConfig(), context(bare))
    with pytest.raises(ConfigError, match="<tool_call>"):
        build_hermes(HermesConfig(), context(bare))


def test_hermes_spells_out_response_tags_that_are_no_tokens():
    found = build_hermes(HermesConfig(), context(train(["text"], 300, HERMES_TOKENS[:4])))
    ids = found.results([ToolResult("c0", "read", "x")], ended=True)
    assert "<tool_response>\nx\n</tool_response>" in train(["text"], 300, HERMES_TOKENS[:4]).decode(ids)
