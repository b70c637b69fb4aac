"""One change of a file in each format that `composer-plugin-code` has a tool for, so that formats can be compared.

A change is a text that stands once in the file, and what is to stand there instead. All formats are given the same
extent, the whole of both texts: what is compared is the format and no cleverness about what to quote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from attrs import frozen

from composer_core.types import ParsedTurn
from composer_plugin_drills.script import turn


@frozen
class Lines:
    """The whole lines that a change touches."""

    first: int
    """Counted from 1."""
    old: tuple[str, ...]
    new: tuple[str, ...]

    @classmethod
    def of(cls, text: str, old: str, new: str) -> Lines:
        """`old` stands once in `text`."""
        start = text.index(old)
        head = text.rfind("\n", 0, start) + 1
        stop = text.find("\n", start + len(old))
        tail = len(text) if stop < 0 else stop
        whole = text[head:start] + new + text[start + len(old) : tail]
        return cls(text.count("\n", 0, head) + 1, tuple(text[head:tail].split("\n")), tuple(whole.split("\n")))


def edit_file(path: str, text: str, old: str, new: str) -> ParsedTurn:
    return turn("edit_file", path=path, old=old, new=new)


def edit_lines(path: str, text: str, old: str, new: str) -> ParsedTurn:
    lines = Lines.of(text, old, new)
    last = lines.first + len(lines.old) - 1
    return turn("edit_lines", path=path, first=lines.first, last=last, text="\n".join(lines.new))


def apply_patch(path: str, text: str, old: str, new: str) -> ParsedTurn:
    lines = Lines.of(text, old, new)
    hunk = [*(f"-{line}" for line in lines.old), *(f"+{line}" for line in lines.new)]
    patch = ["*** Begin Patch", f"*** Update File: {path}", "@@", *hunk, "*** End Patch"]
    return turn("apply_patch", patch="\n".join(patch))


FORMATS: Mapping[str, Callable[[str, str, str, str], ParsedTurn]] = MappingProxyType(
    {"edit_file": edit_file, "edit_lines": edit_lines, "apply_patch": apply_patch}
)
"""Tool -> its call for (path, the file's text, old, new)."""
