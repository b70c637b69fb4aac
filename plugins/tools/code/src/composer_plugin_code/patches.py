"""The text of apply_patch: files added, deleted, moved and updated in one envelope; parsed and applied as values.

    *** Begin Patch
    *** Add File: notes.md
    +# Notes
    *** Update File: pkg/a.py
    *** Move to: pkg/b.py
    @@ def clamp
     context
    -old
    +new
    *** Delete File: old.py
    *** End Patch

Lines of a hunk begin with a space (context), "-" or "+". A hunk is looked for below the hunk before it, and below the
line that its @@ names; context must match exactly, but for white space at the ends of lines. Nothing here reads or
writes files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import define, field, frozen

from composer_core import ToolError

BEGIN, END = "*** Begin Patch", "*** End Patch"
HEADS = {"*** Add File: ": "add", "*** Delete File: ": "delete", "*** Update File: ": "update"}
MOVE, LAST = "*** Move to: ", "*** End of File"
SHOWN_CHARS = 80


@define
class Hunk:
    """Lines that are to be replaced, and what by."""

    anchor: str
    """Text of a line above the change, "" for none."""
    lines: list[tuple[str, str]] = field(factory=list)
    """(mark, text) in order; the mark is a space, "-" or "+"."""
    last: bool = False
    """Whether it ends the file."""

    @property
    def before(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "+"]

    def replaced(self, old: Sequence[str]) -> list[str]:
        """What stands in place of the lines `old` that `before` was found as; context keeps the file's own spelling."""
        rest = iter(old)
        pairs = [(mark, text if mark == "+" else next(rest)) for mark, text in self.lines]
        return [text for mark, text in pairs if mark != "-"]


@frozen
class Change:
    """What happens to one file."""

    kind: str
    """add, delete or update."""
    path: str
    target: str = ""
    """Where an updated file moves, "" if it stays."""
    text: str = ""
    """Of an added file."""
    hunks: tuple[Hunk, ...] = ()


def parsed(text: str) -> list[Change]:
    """The changes of a patch; raises ToolError with the line that does not belong."""
    lines = text.strip("\n").split("\n")
    if lines[0].rstrip() != BEGIN or lines[-1].rstrip() != END:
        raise ToolError(f"a patch begins with the line {BEGIN!r} and ends with the line {END!r}")
    changes = [_change(head, body) for head, body in _sections(lines[1:-1])]
    if not changes:
        raise ToolError("the patch changes no file")
    return changes


def _sections(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each file's head line with the lines below it."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith(tuple(HEADS)):
            found.append((line, []))
        elif not found:
            raise ToolError(f"line 2 of the patch is {_cut(line)}; expected one of {', '.join(HEADS)}")
        else:
            found[-1][1].append(line)
    return found


def _change(head: str, body: list[str]) -> Change:
    mark = next(mark for mark in HEADS if head.startswith(mark))
    kind, path = HEADS[mark], head.removeprefix(mark).strip()
    if kind == "delete":
        _only(path, [line for line in body if line.strip()], "")
        return Change(kind, path)
    if kind == "add":
        _only(path, body, "+")
        return Change(kind, path, text="".join(f"{line[1:]}\n" for line in body))
    move = body.pop(0).removeprefix(MOVE).strip() if body and body[0].startswith(MOVE) else ""
    hunks = tuple(_hunks(path, body))
    if not hunks and not move:
        raise ToolError(f"the patch of {path} holds no hunk")
    return Change(kind, path, target=move, hunks=hunks)


def _only(path: str, body: Sequence[str], mark: str) -> None:
    stray = next((line for line in body if not mark or not line.startswith(mark)), None)
    if stray is not None:
        wanted = f"lines that begin with {mark!r}" if mark else "no lines"
        raise ToolError(f"the patch of {path} holds {_cut(stray)}; expected {wanted}")


def _hunks(path: str, body: Sequence[str]) -> Iterator[Hunk]:
    hunk: Hunk | None = None
    for line in body:
        if line.startswith("@@"):
            if hunk and hunk.lines:
                yield hunk
            hunk = Hunk(line.removeprefix("@@").strip().removesuffix("@@").strip())
            continue
        hunk = hunk or Hunk("")
        if line.rstrip() == LAST:
            hunk.last = True
        elif line[:1] in (" ", "-", "+", ""):
            hunk.lines.append((line[:1] or " ", line[1:]))
        else:
            raise ToolError(f"the patch of {path} holds {_cut(line)}; a line of a hunk begins with ' ', '-' or '+'")
    if hunk and hunk.lines:
        yield hunk


def patched(path: str, text: str, hunks: Sequence[Hunk]) -> str:
    """`text` with the hunks applied in order; raises ToolError with the hunk that fits nowhere."""
    end = "\r\n" if "\r\n" in text else "\n"
    lines, at = text.split(end), 0
    whole = lines[-1] == ""  # the last line has an end, as every line of a file should
    lines = lines[:-1] if whole else lines
    for hunk in hunks:
        start = _place(path, lines, hunk, at)
        stop = start + len(hunk.before)
        new = hunk.replaced(lines[start:stop])
        lines[start:stop] = new
        at = start + len(new)
    return end.join(lines) + end * (whole and bool(lines))


def _place(path: str, lines: Sequence[str], hunk: Hunk, at: int) -> int:
    """The line where a hunk's old lines stand, from `at` on."""
    if hunk.anchor:
        found = next((n for n in range(at, len(lines)) if hunk.anchor in lines[n]), None)
        if found is None:
            raise ToolError(f"{path} has no line that holds {_cut(hunk.anchor)} after line {at}")
        at = found
    if not hunk.before:
        return len(lines) if hunk.last or not hunk.anchor else at + 1
    for same in (str, str.rstrip):
        wanted = [same(line) for line in hunk.before]
        starts = range(at, len(lines) - len(wanted) + 1)
        for start in [len(lines) - len(wanted)] if hunk.last and starts else starts:
            if [same(line) for line in lines[start : start + len(wanted)]] == wanted:
                return start
    raise ToolError(f"{path} does not hold the lines of a hunk after line {at}; the first is {_cut(hunk.before[0])}")


def _cut(line: str) -> str:
    return repr(line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "...")
