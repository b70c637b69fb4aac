"""Cut sampled ids at control tokens: words, calls, and what is neither.

The cut looks at ids and never at text, so a closing tag that a file's text spells out cannot close a call. All
renderers share it; what the inside of a call means is their own (`Inside`).

A format may mend what is almost a call: one that was not closed before the turn's end token or the next call, one that
was never opened, and whatever its inside repairs. Such a call is executed, and `Call.repair` says what was mended. A
turn that was cut off is never mended: what stands there is the beginning of something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from attrs import Factory, define, frozen

from composer_core.protocols import Tokenizer
from composer_core.types import Call, ParsedTurn

MALFORMED = "malformed"
TRUNCATED = "truncated"
REPLACEMENT = "\ufffd"


class BadCall(Exception):
    """The inside of a call cannot be read; the message is what the model is told."""


@frozen
class Reading:
    """One call as it was read."""

    name: str
    arguments: Mapping[str, Any]
    repair: str = ""
    """What was mended to read it."""
    id: str = ""
    """As the policy wrote it, where the format has ids."""


class Inside(Protocol):
    """What stands between the tags of a call, in one format."""

    def read(self, ids: tuple[int, ...]) -> Sequence[Reading]:
        """The calls between two tags, one of them unless the policy put several there. Raises BadCall."""
        ...

    def unopened(self, ids: tuple[int, ...]) -> tuple[str, Sequence[Reading]]:
        """Words, and the calls behind them, of ids that end with a closing tag and have no opening one.

        Raises:
            BadCall: they hold no call, or the format does not mend.
        """
        ...


@frozen
class Tags:
    """Ids that give a turn its structure."""

    call: int
    close: int
    ends: frozenset[int]
    """Each of them ends a turn."""
    inside: frozenset[int] = frozenset()
    """Control ids that may stand inside a call."""
    around: frozenset[int] = frozenset()
    """Control ids that may stand outside calls and mean nothing by themselves."""
    control: frozenset[int] = frozenset()
    """All control ids of the tokenizer."""
    mends: bool = False
    """Whether calls that were not opened or not closed are read all the same."""


@frozen
class Span:
    """A run of ids between control tokens; `problem` is what is wrong with it as a call, "" if nothing."""

    ids: tuple[int, ...]
    words: bool = False
    kind: str = ""
    problem: str = ""
    repair: str = ""
    """What mending it would be: leaving a problem aside that reading its ids would not meet."""
    unopened: bool = False
    """It has a closing tag and no opening one, so that it may begin in the words before it."""


def spans(ids: Sequence[int], tags: Tags) -> Iterator[Span]:
    """The turn's words and calls in order, up to its first end token. Total: any ids give spans."""
    ids = tuple(ids)
    turn = ids[: _next(ids, 0, tags.ends)]
    cut = len(turn) == len(ids)
    start = 0
    while start < len(turn):
        stop = _next(turn, start, tags.control)
        if stop > start:
            yield Span(turn[start:stop], words=True)
        if stop == len(turn):
            return
        if turn[stop] in tags.around:
            start = stop + 1
            continue
        start, span = _call(turn, stop, tags, cut)
        yield span


def _next(ids: tuple[int, ...], start: int, wanted: frozenset[int]) -> int:
    return next((index for index in range(start, len(ids)) if ids[index] in wanted), len(ids))


def _call(ids: tuple[int, ...], at: int, tags: Tags, cut: bool) -> tuple[int, Span]:
    """What the control token at `at` begins, and where the scan goes on."""
    stop = _next(ids, at + 1, frozenset({tags.call, tags.close}) | tags.around)
    closed = stop < len(ids) and ids[stop] == tags.close
    after = stop + 1 if closed else stop
    body = ids[at + 1 : stop]
    if ids[at] == tags.close:
        return at + 1, Span((), kind=MALFORMED, problem="a call is closed that was never opened", unopened=True)
    if ids[at] != tags.call:
        problem = "a control token stands outside a call"
        return after, Span(ids[at:stop], kind=MALFORMED, problem=problem, unopened=closed)
    if closed:
        stray = any(token in tags.control and token not in tags.inside for token in body)
        text = "a control token of another kind stands inside the call" if stray else ""
        return after, Span(body, kind=MALFORMED if stray else "", problem=text)
    if stop < len(ids) and ids[stop] == tags.call:
        problem = "a call begins before the one before it was closed"
    elif cut and stop == len(ids):
        return after, Span(body, kind=TRUNCATED, problem="the turn was cut off inside this call; write less at once")
    else:
        problem = "the turn ends before the call was closed"
    return after, Span(body, kind=MALFORMED, problem=problem, repair="the closing tag is missing")


@frozen
class Parser:
    """Reads turns of one format."""

    tags: Tags
    tokenizer: Tokenizer
    inside: Inside
    gap: str = ""
    """What the format writes before a call, and is no words."""
    call_id: Callable[[int, str], str] = "c{0}".format
    """Id of the n-th call of a turn, of a tool of that name, where the policy gave none."""

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        turn = _Turn(self)
        found = list(spans(ids, self.tags))
        for at, span in enumerate(found):
            after = found[at + 1] if at + 1 < len(found) else None
            turn.words(span, after) if span.words else turn.call(span)
        return ParsedTurn(
            "\n".join(filter(None, turn.texts)), tuple(turn.calls), bool(ids) and ids[-1] in self.tags.ends
        )


@define
class _Turn:
    """A turn while it is read."""

    parser: Parser
    texts: list[str] = Factory(list)
    calls: list[Call] = Factory(list)
    held: tuple[int, ...] = ()
    """Ids of words that may be the beginning of the next span."""

    def words(self, span: Span, after: Span | None) -> None:
        text = self.parser.tokenizer.decode(span.ids)
        self.texts.append(text.removesuffix(self.parser.gap) if after else text)
        self.held = span.ids

    def call(self, span: Span) -> None:
        words, self.held = self.held, ()
        try:
            for reading in self._read(span, words):
                self._add(reading)
        except BadCall as error:
            call_id = self.parser.call_id(len(self.calls), "")
            kind = span.kind if span.problem else MALFORMED
            self.calls.append(Call(call_id, "", {}, problem=kind, detail=span.problem or str(error)))

    def _read(self, span: Span, words: tuple[int, ...]) -> Sequence[Reading]:
        inside, mends = self.parser.inside, self.parser.tags.mends
        if not span.problem:
            return inside.read(span.ids)
        if mends and span.repair:
            return [mended(reading, span.repair) for reading in inside.read(span.ids)]
        if not (mends and span.unopened and (words or span.ids)):
            raise BadCall(span.problem)
        text, readings = inside.unopened((*words, *span.ids))
        if words:
            self.texts[-1] = text
        return [mended(reading, "the opening tag is missing") for reading in readings]

    def _add(self, reading: Reading) -> None:
        taken, own = {call.id for call in self.calls}, self.parser.call_id(len(self.calls), reading.name)
        twice = reading.id in taken
        reading = mended(reading, f"two calls have the id {reading.id}") if twice else reading
        given = "" if twice else reading.id
        self.calls.append(Call(given or own, reading.name, reading.arguments, repair=reading.repair))


def mended(reading: Reading, repair: str) -> Reading:
    """The reading with one more repair."""
    repairs = "; ".join(filter(None, (repair, reading.repair)))
    return Reading(reading.name, reading.arguments, repairs, reading.id)


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


def split(ids: tuple[int, ...], at: int) -> list[tuple[int, ...]]:
    """The runs between the ids `at`."""
    parts: list[list[int]] = [[]]
    for token in ids:
        if token == at:
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts]
