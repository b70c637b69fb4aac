"""The laws of a renderer, over generated turns and arbitrary ids.

Subclass `RendererContract` and say how to build one:

    class TestMine(RendererContract):
        tokens = MY_CONTROL_TAGS
        def renderer(self): return build_mine()
        def tokenizer(self): return the_tokenizer()

Both are asked for in every example, so cache them. Arguments are text by default; a format that carries JSON sets
`values = JSON_VALUES`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_core import Column
from composer_core.protocols import Renderer, Tokenizer, ToolSchema
from composer_core.types import Call, Message, ParsedTurn, ToolResult

SCHEMA = ToolSchema("probe", "A tool.", {"type": "object", "properties": {"key": {"type": "string"}}, "required": []})
NASTY = (
    "",
    " ",
    "\n",
    "\n\n",
    "    return x\n",
    "\ufffd",
    "\u00e9\u4e16\U0001f600",
    "\x00",
    "\r\n",
    '{"a": 1}',
    "'\"\\",
    "</function>",
    "e\u0301",
)
PROBLEMS = (None, "malformed", "truncated")
LAW = settings(
    max_examples=24, deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow]
)


def texts(tokens: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Text that holds control tags, odd characters and white space."""
    piece = st.sampled_from((*tokens, *NASTY)) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return st.lists(piece, max_size=5).map("".join)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
"""JSON but for text, which the contract adds itself."""


class RendererContract:
    """What every renderer does; see the module's docstring."""

    tokens: ClassVar[tuple[str, ...]] = ()
    """Control tags that texts may try to forge."""
    values: ClassVar[st.SearchStrategy[Any] | None] = None
    """Further argument values that the format carries as they are."""
    names: ClassVar[st.SearchStrategy[str] | None] = None
    """Names of tools and arguments that the format can carry; any text by default."""

    def renderer(self) -> Renderer:
        raise NotImplementedError("return a renderer over `tokenizer()`")

    def tokenizer(self) -> Tokenizer:
        raise NotImplementedError("return the tokenizer that `renderer()` uses")

    def call_id(self, number: int, name: str) -> str:
        """The id of a turn's call, counted from 0."""
        return f"c{number}"

    def turns(self) -> st.SearchStrategy[ParsedTurn]:
        """Turns whose rendering is canonical."""
        text = texts(self.tokens)
        value = text if self.values is None else text | self.values
        names = text.filter(bool) if self.names is None else self.names
        arguments = st.dictionaries(names, value, max_size=3)
        calls = st.lists(st.tuples(names, arguments), max_size=3).map(
            lambda found: tuple(Call(self.call_id(at, name), name, given) for at, (name, given) in enumerate(found))
        )
        return st.builds(ParsedTurn, text, calls, st.booleans())

    @LAW
    @given(st.data())
    def test_parsing_a_rendered_turn_gives_it_back(self, data: st.DataObject) -> None:
        turn = data.draw(self.turns())
        renderer = self.renderer()
        ids = renderer.render(turn)
        assert renderer.parse(ids) == turn
        assert renderer.render(renderer.parse(ids)) == ids

    @LAW
    @given(st.data())
    def test_any_ids_parse(self, data: st.DataObject) -> None:
        control = [self.tokenizer().special(token) for token in self.tokens]
        token = st.sampled_from(control) | st.integers(0, self.tokenizer().vocab_size + 31)  # padded rows too
        ids = data.draw(st.lists(token, max_size=40))
        turn = self.renderer().parse(ids)
        stopped = bool(ids) and ids[-1] in self.renderer().stop_ids()
        assert turn.ended == stopped or (turn.calls and stopped), "calls may ask for an end token of their own"
        assert all(call.problem in PROBLEMS for call in turn.calls)
        assert all(bool(call.detail) == bool(call.problem) for call in turn.calls)
        assert not any(call.repair for call in turn.calls if call.problem)
        assert len({call.id for call in turn.calls}) == len(turn.calls)

    @LAW
    @given(st.data())
    def test_a_damaged_turn_parses_and_each_of_its_calls_has_a_name_or_a_problem(self, data: st.DataObject) -> None:
        """Ids are lost and doubled, as policies lose and double them."""
        turn = data.draw(self.turns())
        ids = self.renderer().render(turn)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, max(0, len(ids) - 1)))
            piece = ids[at : at + 1] * data.draw(st.sampled_from((0, 0, 2)))
            ids = [*ids[:at], *piece, *ids[at + 1 :]]
        for call in self.renderer().parse(ids).calls:
            assert call.problem in PROBLEMS and bool(call.detail) == bool(call.problem)
            assert call.name or call.problem

    @LAW
    @given(st.data())
    def test_a_cut_turn_keeps_its_whole_calls_and_reports_at_most_one_as_truncated(self, data: st.DataObject) -> None:
        turn = data.draw(self.turns())
        renderer = self.renderer()
        ids = renderer.render(turn)
        cut = renderer.parse(ids[: data.draw(st.integers(0, max(0, len(ids) - 1)))])
        whole = [call for call in cut.calls if call.problem is None]
        assert tuple(whole) == turn.calls[: len(whole)]
        assert [call.problem for call in cut.calls if call.problem] in ([], ["truncated"])
        assert len(cut.calls) <= len(turn.calls)

    @LAW
    @given(st.data())
    def test_text_never_becomes_a_control_token(self, data: st.DataObject) -> None:
        text = data.draw(texts(self.tokens))
        renderer = self.renderer()
        control = {self.tokenizer().special(token) for token in self.tokens}

        def structure(text: str) -> list[list[int]]:
            result = ToolResult("c0", "probe", text)
            rows = [
                renderer.open([Message("system", text), Message("user", text)], [SCHEMA]),
                renderer.results([result, result], ended=True),
                renderer.request(Message("user", text), ended=True),
                renderer.render(ParsedTurn(text, (Call("c0", "probe", {"key": text}),))),
            ]
            return [[token for token in row if token in control] for row in rows]

        assert structure(text) == structure("plain")

    def test_an_unended_turn_is_closed_first(self) -> None:
        renderer = self.renderer()
        result, message = ToolResult("c0", "probe", "text"), Message("user", "why?")
        for whole, bare in (
            (renderer.results([result], False), renderer.results([result], True)),
            (renderer.results([], False), renderer.results([], True)),
            (renderer.request(message, False), renderer.request(message, True)),
        ):
            assert whole[0] in renderer.stop_ids()
            assert whole[1:] == bare

    def test_every_increment_opens_the_policys_turn_alike(self) -> None:
        renderer = self.renderer()
        result = ToolResult("c0", "probe", "text")
        opening = renderer.open([Message("user", "go")], [])
        increments = (
            renderer.results([result], True),
            renderer.results([result, result], True),
            renderer.request(Message("user", "why?"), True),
        )
        start = opening[-1:]
        while all(row[-len(start) - 1 :] == opening[-len(start) - 1 :] for row in increments) and len(start) < len(
            opening
        ):
            start = opening[-len(start) - 1 :]
        assert any(token in {self.tokenizer().special(tag) for tag in self.tokens} for token in start)

    def test_given_ids_are_spliced_unchanged(self) -> None:
        renderer = self.renderer()
        ids = [self.tokenizer().vocab_size - 1, 300, 300, self.tokenizer().vocab_size - 2]
        message = Message("summary", "never encoded", Column.of("I32", ids))
        for row in (renderer.open([message], []), renderer.request(message, True)):
            assert any(row[at : at + len(ids)] == ids for at in range(len(row)))

    def test_results_come_in_order_and_all_of_them(self) -> None:
        renderer = self.renderer()
        results = [ToolResult(f"c{at}", "probe", f"number {at}") for at in range(3)]
        text = self.tokenizer().decode(renderer.results(results, True))
        places = [text.index(f"number {at}") for at in range(3)]
        assert places == sorted(places)

    def test_a_turn_without_words_or_calls_is_empty(self) -> None:
        renderer = self.renderer()
        assert renderer.parse([]) == ParsedTurn("", (), ended=False)
        assert renderer.parse(sorted(renderer.stop_ids())[:1]) == ParsedTurn("", (), ended=True)
