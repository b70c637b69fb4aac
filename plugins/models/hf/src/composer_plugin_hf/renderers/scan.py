"""Cut sampled ids at control tokens: words, calls, and what is neither.

The cut looks at ids and never at text, so a closing tag that a file's text spells out cannot close a call. Both
renderers share it; what the inside of a call means is their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import frozen

from composer_core.protocols import Tokenizer
from composer_core.types import Call, ParsedTurn

MALFORMED = "malformed"
TRUNCATED = "truncated"
REPLACEMENT = "\ufffd"
ReadCall = Callable[[tuple[int, ...]], tuple[str, dict[str, Any]]]
"""Ids inside a call -> name and arguments; raises BadCall."""


@frozen
class Tags:
    """Ids that give a turn its structure."""

    call: int
    close: int
    end: int
    inside: frozenset[int] = frozenset()
    """Control ids that may stand inside a call."""
    control: frozenset[int] = frozenset()
    """All control ids of the tokenizer."""


@frozen
class Span:
    """A run of ids between control tokens; `problem` is what is wrong with it as a call, "" if nothing."""

    ids: tuple[int, ...]
    words: bool = False
    kind: str = ""
    problem: str = ""


class BadCall(Exception):
    """The inside of a call cannot be read; the message is what the model is told."""


def spans(ids: Sequence[int], tags: Tags) -> Iterator[Span]:
    """The turn's words and calls in order, up to its first end token. Total: any ids give spans."""
    ids = tuple(ids)
    turn = ids[: ids.index(tags.end)] if tags.end in ids else ids
    cut = len(turn) == len(ids)
    start = 0
    while start < len(turn):
        stop = _next(turn, start, tags.control)
        if stop > start:
            yield Span(turn[start:stop], words=True)
        if stop == len(turn):
            return
        start, span = _call(turn, stop, tags, cut)
        yield span


def _next(ids: tuple[int, ...], start: int, wanted: frozenset[int]) -> int:
    return next((index for index in range(start, len(ids)) if ids[index] in wanted), len(ids))


def _call(ids: tuple[int, ...], at: int, tags: Tags, cut: bool) -> tuple[int, Span]:
    """What the control token at `at` begins, and where the scan goes on."""
    stop = _next(ids, at + 1, frozenset({tags.call, tags.close}))
    closed = stop < len(ids) and ids[stop] == tags.close
    after = stop + 1 if closed else stop
    body = ids[at + 1 : stop]
    if ids[at] == tags.close:
        return at + 1, Span((), kind=MALFORMED, problem="a call is closed that was never opened")
    if ids[at] != tags.call:
        return after, Span(body, kind=MALFORMED, problem="a control token stands outside a call")
    if closed:
        stray = any(token in tags.control and token not in tags.inside for token in body)
        text = "a control token of another kind stands inside the call" if stray else ""
        return after, Span(body, kind=MALFORMED if stray else "", problem=text)
    if stop < len(ids):
        return after, Span(body, kind=MALFORMED, problem="a call begins before the one before it was closed")
    if cut:
        return after, Span(body, kind=TRUNCATED, problem="the turn was cut off inside this call; write less at once")
    return after, Span(body, kind=MALFORMED, problem="the turn ends before the call was closed")


def parse_turn(ids: Sequence[int], tags: Tags, tokenizer: Tokenizer, read: ReadCall, gap: str = "") -> ParsedTurn:
    """A turn whose calls are read by `read`; `gap` is what the format writes before a call and is no words."""
    words: list[str] = []
    calls: list[Call] = []
    found = list(spans(ids, tags))
    for at, span in enumerate(found):
        if span.words:
            text = tokenizer.decode(span.ids)
            words.append(text.removesuffix(gap) if at + 1 < len(found) else text)
        else:
            calls.append(_read(f"c{len(calls)}", span, read))
    return ParsedTurn("\n".join(filter(None, words)), tuple(calls), ended=bool(ids) and ids[-1] == tags.end)


def _read(call_id: str, span: Span, read: ReadCall) -> Call:
    if span.problem:
        return Call(call_id, "", {}, problem=span.kind, detail=span.problem)
    try:
        name, arguments = read(span.ids)
    except BadCall as error:
        return Call(call_id, "", {}, problem=MALFORMED, detail=str(error))
    return Call(call_id, name, arguments)


def strict_text(tokenizer: Tokenizer, ids: Sequence[int], what: str) -> str:
    """The text of ids inside a call.

    Raises:
        BadCall: their bytes are no UTF-8. A genuine U+FFFD is told apart by encoding it again, which accepts only the
            tokenizer's own spelling of it.
    """
    text = tokenizer.decode(ids)
    if REPLACEMENT in text and tokenizer.encode(text) != list(ids):
        raise BadCall(f"{what} is not valid UTF-8")
    return text
