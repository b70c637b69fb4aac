"""edit_lines: replace lines by number, an alternative to edit_file for comparing formats of edits.

Numbers go stale when a file changes, whoever changes it, so an edit is refused unless the file still is what read_file
showed. Two edits by old numbers in one turn are refused at the second, and an edit of lines that no read has shown.
"""

from __future__ import annotations

import hashlib

from composer_core import ToolContext, ToolError, ToolOutput
from composer_plugin_code.paths import as_text, clean, mark_read, read_bytes, write_bytes


async def edit_lines(context: ToolContext, path: str, first: int, last: int, text: str) -> ToolOutput:
    """Replace lines of a file that was read, by their numbers; read it again before the next such edit.

    Args:
        path: file, relative to the workspace
        first: first line to replace, counted from 1
        last: last line to replace; one less than first inserts before first and replaces none
        text: lines to stand in their place; empty deletes them
    """
    file = clean(path)
    data = await read_bytes(context, file)
    as_text(data, file)
    seen = _seen(context, file, data)
    lines = _lines(data)
    if not (1 <= first <= len(lines) + 1 and first - 1 <= last <= len(lines)):
        raise ToolError(f"{file} has {len(lines)} lines; {first} to {last} are not among them")
    if lines:
        _refuse_unseen(file, first, last, seen)
    end = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
    new = [line.encode() + end for line in text.removesuffix("\n").split("\n")] if text else []
    before = lines[: first - 1]
    if new and before and not before[-1].endswith(b"\n"):
        before[-1] += end
    await write_bytes(context, file, b"".join([*before, *new, *lines[last:]]))
    mark_read(context, file)
    total = len(lines) - (last - first + 1) + len(new)
    where = f"lines {first}-{first + len(new) - 1} are new" if new else f"{last - first + 1} lines are gone"
    return ToolOutput(f"edited {file}: {where}; it has {total} lines", data={"written": file, "read_before": True})


def mark_numbered(context: ToolContext, path: str, data: bytes, lines: range) -> None:
    """Remember that the model was shown these lines of these bytes, by their numbers."""
    numbered = context.state.setdefault("numbered", {})
    digest = hashlib.sha256(data).hexdigest()
    known, seen = numbered.get(path, (digest, frozenset()))
    numbered[path] = digest, (seen if known == digest else frozenset()).union(lines)


def _seen(context: ToolContext, path: str, data: bytes) -> frozenset[int]:
    """The lines of a file that were shown; ToolError if it is no longer what was read."""
    numbered: dict[str, tuple[str, frozenset[int]]] = context.state.get("numbered", {})
    if path not in numbered:
        raise ToolError(f"{path} was not read; read it for its line numbers")
    digest, seen = numbered[path]
    if digest != hashlib.sha256(data).hexdigest():
        raise ToolError(f"{path} has changed since it was read; read it again for its line numbers")
    return seen


def _refuse_unseen(path: str, first: int, last: int, seen: frozenset[int]) -> None:
    """Lines that are replaced must have been shown, and of an insertion the line above it or the one below."""
    if last < first:
        unseen = [] if seen & {first - 1, first} else [first]
    else:
        unseen = sorted({*range(first, last + 1)} - seen)
    if unseen:
        raise ToolError(f"line {unseen[0]} of {path} was not shown; read it before you edit it by its number")


def _lines(data: bytes) -> list[bytes]:
    """Lines as read_file counts them, parted at LF alone, each with its end."""
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])
