"""A shell command's text taken apart into the simple commands it is made of.

It is no shell: what is quoted, written into a here-document or left as a comment is hidden first, and what remains is
cut at the signs between commands. Blocks (`if`, `for`, functions) are not understood; their words are parts like any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

HIDDEN = re.compile(
    r"(?<!<)<<(?!<)(?P<dash>-)?[ \t]*(?P<quote>['\"\\]?)(?P<end>[\w.-]++)[^\n]*+"  # a here-document, to its end
    r"(?:\n(?!(?(dash)\t*)(?P=end)(?:\n|\Z))[^\n]*+)*+(?:\n(?(dash)\t*)(?P=end)(?=\n|\Z))?"
    r"|\\.|'[^']*+'?|\"(?:\\.|[^\"\\])*+\"?|(?<!\S)#[^\n]*+",
    re.DOTALL,
)
SIGNS = re.compile(r"&&|\|\||[;|\n]|(?<![&>])&(?![&>])")


@frozen
class Part:
    """A simple command."""

    sign: str
    """What stands before it: &&, ||, ;, |, & or a line's end; "" before the first."""
    text: str
    bare: str
    """The text with a filler, as long, for what is hidden."""


def parts(command: str) -> Iterator[Part]:
    """The command's simple commands, in order; the last one is empty where a sign ends it, such as &."""
    bare = HIDDEN.sub(_filler, command).rstrip(" \t\n;)")
    sign, start = "", 0
    for found in [*SIGNS.finditer(bare), None]:
        stop = found.start() if found else len(bare)
        shown = bare[start:stop].rstrip().lstrip(" \t(")
        if shown or not found:
            at = stop - len(bare[start:stop].lstrip(" \t("))
            yield Part(sign, command[at : at + len(shown)], shown)
        if found:
            sign = found[0] if shown or not sign else sign  # a line that is broken after a sign goes on
            start = found.end()


def _filler(found: re.Match[str]) -> str:
    """Blanks for what the shell does not read, and else a word; a here-document keeps its sign."""
    hidden = found[0]
    if hidden.startswith("#") or hidden == "\\\n":
        return " " * len(hidden)
    kept = "<<" if hidden.startswith("<<") else ""
    return kept + "_" * (len(hidden) - len(kept))
