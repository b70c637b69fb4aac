"""list_dir, read_file, write_file and delete_file."""

from __future__ import annotations

from composer_core import ToolContext, ToolError, ToolOutput
from composer_core.errors import PathError
from composer_plugin_code.config import ListConfig, ReadConfig
from composer_plugin_code.lines import mark_numbered
from composer_plugin_code.paths import (
    as_text,
    clean,
    instead,
    mark_read,
    read_bytes,
    remove,
    was_read,
    write_bytes,
)
from composer_plugin_code.room import Line, fitted, left_of


async def list_dir(context: ToolContext, path: str = "") -> ToolOutput:
    """List a folder; names of folders end with a slash.

    Args:
        path: folder, relative to the workspace; the workspace itself if left out
    """
    config: ListConfig = context.config or ListConfig()
    folder = clean(path)
    try:
        entries = await context.sandbox.list(folder)
    except PathError:
        raise ToolError(await instead(context, folder, "folder")) from None
    names = sorted(entry.name + "/" * (entry.kind == "folder") for entry in entries)
    lines = [Line(name, len(name)) for name in names[: config.max_entries]]
    text, _ = fitted(lines, context.limits.output_chars, left_of(len(names), " entries"))
    return ToolOutput(text or "(empty)", data={"listed": folder, "entries": len(names)})


async def read_file(context: ToolContext, path: str, offset: int = 1, limit: int | None = None) -> ToolOutput:
    """Read a text file, or some of its lines.

    Args:
        path: file, relative to the workspace
        offset: first line, counted from 1
        limit: how many lines
    """
    config: ReadConfig = context.config or ReadConfig()
    file = clean(path)
    raw = await read_bytes(context, file)
    lines = as_text(raw, file).split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    wanted = config.max_lines if limit is None else min(limit, config.max_lines)
    if offset < 1 or wanted < 1:
        raise ToolError("offset and limit count from 1")
    if offset > max(1, len(lines)):
        raise ToolError(f"{file} has {len(lines)} lines; offset {offset} is after its end")
    rows = _rows(lines[offset - 1 : offset - 1 + wanted], offset, config)

    def more(shown: int) -> str:
        stop = offset - 1 + shown
        told = f"... lines {offset}-{stop} of {len(lines)}; read on with offset {stop + 1}"
        return told if stop < len(lines) else ""

    text, shown = fitted(rows, context.limits.output_chars, more)
    mark_read(context, file)
    mark_numbered(context, file, raw, range(offset, offset + shown))
    whole = shown == len(lines) and text == "\n".join(row.before + row.text for row in rows)
    return ToolOutput(text if lines else "(empty)", data={"read": file, "lines": shown, "whole": whole})


def _rows(lines: list[str], first: int, config: ReadConfig) -> list[Line]:
    """The first of the lines, at least one, that make no more bytes than one call may show."""
    rows: list[Line] = []
    total = 0
    for number, line in enumerate(lines, first):
        row = Line(line, config.max_line_chars, f"{number}: " if config.line_numbers else "")
        total += len(row.shown.encode()) + 1
        if total > config.max_bytes and rows:
            break
        rows.append(row)
    return rows


async def write_file(context: ToolContext, path: str, content: str) -> ToolOutput:
    """Write a whole file; folders are made as needed.

    Args:
        path: file, relative to the workspace
        content: the file's new text
    """
    file = clean(path)
    known = was_read(context, file)
    await write_bytes(context, file, content.encode())
    mark_read(context, file)
    return ToolOutput(f"wrote {file}", data={"written": file, "read_before": known})


async def delete_file(context: ToolContext, path: str) -> ToolOutput:
    """Delete a file.

    Args:
        path: file, relative to the workspace
    """
    file = clean(path)
    known = was_read(context, file)
    await remove(context, file)
    return ToolOutput(f"deleted {file}", data={"deleted": file, "read_before": known})
