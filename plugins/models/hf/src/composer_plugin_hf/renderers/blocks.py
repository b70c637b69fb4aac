"""Calls as blocks of text, `<function=NAME>` with a `<parameter=KEY>` for each argument: scanned, never matched.

Values are code, and code may hold the very tags that close it. So a closing tag counts only where what follows it is
the rest of a call: the next argument that the tool knows and has not been given, or the function's end, after which
nothing comes but another function. Where a tag is missing the same places end a value, and the call is mended. What
stands in a value as a whole such rest cannot be told apart; the format has no escape for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import define

from composer_plugin_hf.renderers.scan import BadCall, Reading, mended

FUNCTION = re.compile(r"<function=([^>\n]*)(>|\n)")
PARAMETER = re.compile(r"<parameter=([^>\n]*)(>|\n)")
SPACE = re.compile(r"\s*")
CLOSE_PARAMETER, CLOSE_FUNCTION = "</parameter>", "</function>"
SHOWN_CHARS = 40
Known = Mapping[str, frozenset[str]]
"""Tool -> its arguments; of a tool that is not there nothing is known."""


def written(name: str, arguments: Mapping[str, str]) -> str:
    """The canonical text of a call, with the line ends beside its tags."""
    lines = [f"<function={name}>"]
    for key, value in arguments.items():
        lines += [f"<parameter={key}>", value, CLOSE_PARAMETER]
    return "\n".join(["", *lines, CLOSE_FUNCTION, ""])


def read(text: str, known: Known) -> list[Reading]:
    """The calls of a text. Raises BadCall with what does not belong."""
    readings, at = [], _past_space(text, 0)
    while at < len(text):
        call = _Call(text, at, known)
        readings.append(call.read())
        at = _past_space(text, call.at)
    if not readings:
        raise BadCall("the call is empty; a call begins with <function=NAME>")
    if len(readings) == 1:
        return readings
    return [mended(reading, "several calls stand between one pair of tags") for reading in readings]


@define
class _Call:
    """One function while it is read; `at` is where the scan stands."""

    text: str
    at: int
    known: Known
    repair: str = ""

    def read(self) -> Reading:
        head = FUNCTION.match(self.text, self.at)
        if head is None:
            raise BadCall(f"{self._shown()} stands where <function=NAME> is expected")
        name = self._tag(head)
        if not name:
            raise BadCall("the call has no tool name")
        arguments: dict[str, str] = {}
        while head := PARAMETER.match(self.text, _past_space(self.text, self.at)):
            self.at = head.start()
            key = self._tag(head)
            if not key:
                raise BadCall("an argument has no name")
            if key in arguments:
                raise BadCall(f"argument {key!r} is given twice")
            arguments[key] = self._value(name, {*arguments, key})
        self._close()
        return Reading(name, arguments, self.repair)

    def _tag(self, head: re.Match[str]) -> str:
        """The name in an opening tag, behind which the scan goes on."""
        self.at = head.end() if head[2] == ">" else head.end() - 1
        self._mend("" if head[2] == ">" else "the > of a tag is missing")
        return head[1].strip()

    def _value(self, name: str, given: set[str]) -> str:
        stop, length = self._end(name, given, CLOSE_PARAMETER), len(CLOSE_PARAMETER)
        if stop < 0:
            stop = self.text.find(CLOSE_PARAMETER, self.at)  # what follows it does not belong, and is told so
        bare = self._unclosed(name, given, stop)
        if bare >= 0:
            self._mend(f"{CLOSE_PARAMETER} is missing")
            stop, length = bare, 0
        value = self.text[self.at : stop]
        self.at = stop + length
        return value.removeprefix("\n").removesuffix("\n")

    def _unclosed(self, name: str, given: set[str], stop: int) -> int:
        """Where the value ends if its closing tag is missing, -1 if it is not.

        It is if there is none at all, or if an argument that the tool knows begins before `stop` and has no closing
        tag of its own: then `stop` is that one's.
        """
        if stop < 0:
            bare = self._end(name, given, "")
            return bare if bare >= 0 else len(self.text)
        heads = [
            head for head in PARAMETER.finditer(self.text, self.at, stop) if head[1].strip() in self.known.get(name, ())
        ]
        new = [head for head in heads if head[1].strip() not in given]
        closed = self.text.count(CLOSE_PARAMETER, self.at, stop)
        return new[0].start() if new and len(heads) > closed else -1

    def _end(self, name: str, given: set[str], close: str) -> int:
        """The first place of `close`, from here on, that the rest of a call follows; -1 if there is none."""
        at = self.text.find(close or "<", self.at)
        while at >= 0:
            if self._rest_follows(at + len(close), name, given):
                return at
            at = self.text.find(close or "<", at + 1)
        return -1

    def _rest_follows(self, at: int, name: str, given: set[str]) -> bool:
        at = _past_space(self.text, at)
        if head := PARAMETER.match(self.text, at):
            key = head[1].strip()
            return key not in given and key in self.known.get(name, {key})
        if not self.text.startswith(CLOSE_FUNCTION, at):
            return at == len(self.text)
        after = _past_space(self.text, at + len(CLOSE_FUNCTION))
        head = FUNCTION.match(self.text, after)
        return after == len(self.text) or (head is not None and (not self.known or head[1].strip() in self.known))

    def _close(self) -> None:
        self.at = _past_space(self.text, self.at)
        if self.text.startswith(CLOSE_FUNCTION, self.at):
            self.at += len(CLOSE_FUNCTION)
        elif self.at == len(self.text) or FUNCTION.match(self.text, self.at):
            self._mend(f"{CLOSE_FUNCTION} is missing")
        else:
            raise BadCall(f"{self._shown()} stands where <parameter=KEY> or {CLOSE_FUNCTION} is expected")

    def _mend(self, repair: str) -> None:
        if repair and repair not in self.repair:
            self.repair = "; ".join(filter(None, (self.repair, repair)))

    def _shown(self) -> str:
        return repr(self.text[self.at : self.at + SHOWN_CHARS])


def _past_space(text: str, at: int) -> int:
    """The next place that is no white space; nothing is copied, since a policy may write any number of tags."""
    found = SPACE.match(text, at)
    return found.end() if found else at


def begins(text: str, known: Known) -> Iterator[int]:
    """Places where a function of a known tool begins a line."""
    for head in FUNCTION.finditer(text):
        if text[: head.start()].rpartition("\n")[2].strip() == "" and head[1].strip() in known:
            yield head.start()
