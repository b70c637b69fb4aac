"""edit_file: replace one exact text. When the text is absent or not unique, the error says where to look.

The edit is made on bytes, so what the file holds beside the edited text is never changed, whatever its encoding. The
one thing not taken literally are line ends: in a file whose lines end with CR LF, a text with LF is looked for so.
"""

from __future__ import annotations

import difflib
import re

from composer_core import ToolContext, ToolError, ToolOutput
from composer_plugin_code.paths import clean, mark_read, read_bytes, shortened, was_read, write_bytes

COMPARED_LINES = 5000
SHOWN_CHARS = 200
SHOWN_PLACES = 10
NUMBERED = re.compile(r"\s*\d+: ")


async def edit_file(context: ToolContext, path: str, old: str, new: str, replace_all: bool = False) -> ToolOutput:
    """Replace the one place where a file holds `old`.

    Args:
        path: file, relative to the workspace
        old: exact text, spaces included, that occurs once
        new: text to stand in its place
        replace_all: replace every place instead, however many there are
    """
    file = clean(path)
    if not old:
        raise ToolError("old is empty; use write_file to write a whole file")
    if old == new:
        raise ToolError("old and new are equal; nothing to edit")
    data = await read_bytes(context, file)
    before, after = _line_ends(data, old, new)
    count = data.count(before)
    if count == 0:
        raise ToolError(_absent(data.decode(errors="replace"), old, file))
    if not replace_all and (count > 1 or data.find(before, data.find(before) + 1) >= 0):
        raise ToolError(_many(data, before, file))
    known = was_read(context, file)
    await write_bytes(context, file, data.replace(before, after))
    mark_read(context, file)
    places = f": {count} places" if replace_all else ""
    return ToolOutput(f"edited {file}{places}", data={"written": file, "read_before": known})


def _line_ends(data: bytes, old: str, new: str) -> tuple[bytes, bytes]:
    before, after = old.encode(), new.encode()
    if before not in data and b"\r\n" in data and b"\r" not in before:
        return before.replace(b"\n", b"\r\n"), after.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    return before, after


def _many(data: bytes, before: bytes, file: str) -> str:
    """Where `before` occurs, overlaps included."""
    lines: list[str] = []
    at = data.find(before)
    while at >= 0 and len(lines) <= SHOWN_PLACES:
        lines.append(str(data.count(b"\n", 0, at) + 1))
        at = data.find(before, at + 1)
    more = ", ..." if len(lines) > SHOWN_PLACES else ""
    places = ", ".join(lines[:SHOWN_PLACES]) + more
    return f"old is not unique in {file}: it begins on lines {places}; add text around it"


def _absent(text: str, old: str, file: str) -> str:
    """The nearest line to the first line of `old`, and what is commonly wrong."""
    lines = text.split("\n")[:COMPARED_LINES]
    wanted = next((line for line in old.split("\n") if line.strip()), "")
    if all(NUMBERED.match(line) for line in old.split("\n") if line):
        return f"old is not in {file}; leave line numbers out of old"
    stripped = [line.strip() for line in lines]
    near = difflib.get_close_matches(wanted.strip(), sorted(set(stripped) - {""}), n=1, cutoff=0.4)
    if not near:
        return f"old is not in {file}; read the file and copy the text exactly"
    number = stripped.index(near[0])
    reason = "spaces differ or a later line does" if near[0] == wanted.strip() else "nearest"
    return f"old is not in {file}; line {number + 1} ({reason}): {shortened(lines[number], SHOWN_CHARS)}"
