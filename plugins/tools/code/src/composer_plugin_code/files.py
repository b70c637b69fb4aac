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
    shortened,
    was_read,
    write_bytes,
)


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
    left = len(names) - config.max_entries
    shown = names[: config.max_entries] + [f"... {left} more entries"] * (left > 0)
    return ToolOutput("\n".join(shown) or "(empty)", data={"listed": folder, "entries": len(names)})


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
    stop = min(len(lines), offset - 1 + wanted)
    shown = [shortened(line, config.max_line_chars) for line in lines[offset - 1 : stop]]
    if config.line_numbers:
        shown = [f"{number}: {line}" for number, line in enumerate(shown, offset)]
    shown = _within(shown, config.max_bytes)
    stop = offset - 1 + len(shown) if lines else 0
    if stop < len(lines):
        shown.append(f"... lines {offset}-{stop} of {len(lines)}; read on with offset {stop + 1}")
    mark_read(context, file)
    mark_numbered(context, file, raw)
    data = {"read": file, "lines": stop - offset + 1, "whole": offset == 1 and stop == len(lines)}
    return ToolOutput("\n".join(shown) if lines else "(empty)", data=data)


def _within(lines: list[str], limit_bytes: int) -> list[str]:
    """The first of the lines, at least one, that make no more bytes than the limit."""
    total = 0
    for number, line in enumerate(lines):
        total += len(line.encode()) + 1
        if total > limit_bytes and number:
            return lines[:number]
    return lines


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
