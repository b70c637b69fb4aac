"""What a patch does to each file, as rows to draw and as text that `git apply` takes.

A person accepts a patch by what is shown here, so nothing of it may be invisible: an empty file, a mode and a binary
are told, and a path can neither forge a header nor hide. Comparing is bounded, since the texts are a policy's: where
an exact comparison would be long, the lines between the common head and tail are shown as replaced whole.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from attrs import frozen

from composer_core.trees import File, Patch

__all__ = [
    "FileDiff",
    "compare",
    "unified",
]

MOST_CELLS = 1_000_000
"""Most pairs of lines that are compared one by one."""
AROUND = 3
"""Unchanged lines shown around a change."""
NO_END = " No newline at end of file"


@frozen
class FileDiff:
    """What happens to one path."""

    path: str
    how: str
    """new, changed, deleted, or written where the original was not kept."""
    modes: tuple[str, str]
    """Before and after: 100644, 100755, or "" where there is no file."""
    binary: bool = False
    rows: tuple[tuple[str, str], ...] = ()
    """(mark, text without its line end); a mark is @ for a hunk's head, +, -, blank, or a backslash for a remark."""


def compare(before: Iterable[File], patch: Patch, whole: bool = True) -> list[FileDiff]:
    """One for each path the patch touches, in order.

    `before` holds at least the touched files of the original tree; if not `whole`, some of them may be missing.
    """
    old = {file.path: file for file in before}
    new = {file.path: file for file in patch.writes}
    return [_compare_file(path, old.get(path), new.get(path), whole) for path in patch.touched()]


def _compare_file(path: str, old: File | None, new: File | None, whole: bool) -> FileDiff:
    how = "deleted" if new is None else "changed" if old else "new" if whole else "written"
    texts = [_lines(file) for file in (old, new)]
    if None in texts:
        return FileDiff(path, how, (_mode(old), _mode(new)), binary=True)
    return FileDiff(path, how, (_mode(old), _mode(new)), rows=tuple(_rows(texts[0] or [], texts[1] or [])))


def _mode(file: File | None) -> str:
    return "" if file is None else "100755" if file.executable else "100644"


def _lines(file: File | None) -> list[str] | None:
    """Lines with their ends (line feeds alone end a line), none of a missing file, None of one that is no text."""
    if file is None:
        return []
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        return None
    *ended, last = text.split("\n")
    return None if "\0" in text else [line + "\n" for line in ended] + ([last] if last else [])


def _rows(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    shared = _common(old, new)
    tail = _common(old[shared:][::-1], new[shared:][::-1])
    middle = (old[shared : len(old) - tail], new[shared : len(new) - tail])
    if len(middle[0]) * len(middle[1]) > MOST_CELLS:
        yield "@", f"@@ -{shared + 1},{len(middle[0])} +{shared + 1},{len(middle[1])} @@"
        lines = [*("-" + line for line in middle[0]), *("+" + line for line in middle[1])]
    else:
        lines = list(difflib.unified_diff(old, new, n=AROUND))[2:]
    for line in lines:
        yield ("@", line.rstrip("\n")) if line.startswith("@@") else (line[0], line[1:].removesuffix("\n"))
        if not line.endswith("\n"):
            yield "\\", NO_END


def _common(old: list[str], new: list[str]) -> int:
    """How many lines both start with."""
    return next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def unified(before: Iterable[File], patch: Patch, whole: bool = True) -> str:
    """The patch in git's format, which `git apply` takes for text files."""
    return "".join(line + "\n" for diff in compare(before, patch, whole) for line in _printed(diff))


def _printed(diff: FileDiff) -> Iterator[str]:
    old, new = _quoted(f"a/{diff.path}"), _quoted(f"b/{diff.path}")
    before, after = diff.modes
    yield f"diff --git {old} {new}"
    if diff.how == "new":
        yield f"new file mode {after}"
    elif diff.how == "deleted":
        yield f"deleted file mode {before or '100644'}"
    elif before and before != after:
        yield f"old mode {before}"
        yield f"new mode {after}"
    if diff.binary:
        yield f"Binary files {old if before else '/dev/null'} and {new if after else '/dev/null'} differ"
    elif diff.rows:
        yield f"--- {old if before else '/dev/null'}"
        yield f"+++ {new if after else '/dev/null'}"
    for mark, text in diff.rows:
        yield text if mark == "@" else mark + text


def _quoted(path: str) -> str:
    """As git quotes a path that holds a quote, a backslash or a control character."""
    if path.isprintable() and not set(path) & set('"\\'):
        return path
    plain = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t"}
    codes = path.encode("utf-8", "surrogateescape")
    return '"' + "".join(plain.get(c, chr(c) if 32 <= c < 127 else f"\\{c:03o}") for c in codes) + '"'
