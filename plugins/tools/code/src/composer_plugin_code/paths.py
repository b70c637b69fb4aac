"""Paths and file texts as tools see them: relative, normalized, and with errors the model can act on."""

from __future__ import annotations

import difflib
import posixpath
from typing import TypeVar

from composer_core import ToolContext, ToolError
from composer_core.errors import PathError, QuotaError

Value = TypeVar("Value")
NEAR_NAMES = 3


def clean(path: str) -> str:
    """`path` normalized, "" for the workspace itself.

    Raises:
        ToolError: it is absolute, leaves the workspace, or holds a NUL.
    """
    if "\0" in path:
        raise ToolError("a path cannot hold a NUL character")
    found = posixpath.normpath(path) if path else "."
    if posixpath.isabs(found) or found.split("/")[0] == "..":
        raise ToolError(f"{path} is outside the workspace; use a path relative to it")
    return "" if found == "." else found


async def read_bytes(context: ToolContext, path: str) -> bytes:
    """A file's bytes; `path` is clean. Raises ToolError with what is there instead."""
    if not path:
        raise ToolError("the path is a folder; name a file in it")
    try:
        return await context.sandbox.read(path)
    except PathError:
        raise ToolError(await _instead(context, path)) from None
    except QuotaError:
        raise ToolError(f"{path} is too large to be read; use grep or run_terminal") from None


async def write_bytes(context: ToolContext, path: str, data: bytes) -> None:
    """Replace a file; `path` is clean."""
    if not path:
        raise ToolError("the path is a folder; name a file in it")
    try:
        await context.sandbox.write(path, data)
    except PathError as error:
        raise ToolError(f"{path} cannot be written: {error.message}") from None
    except QuotaError as error:
        raise ToolError(f"{path} was not written: {error.message}") from None


def as_text(data: bytes, path: str) -> str:
    """A file's text; bytes that are no UTF-8 are shown as U+FFFD. ToolError for binary files."""
    if b"\0" in data[:8192]:
        raise ToolError(f"{path} is a binary file of {len(data)} bytes")
    return data.decode(errors="replace")


async def _instead(context: ToolContext, path: str) -> str:
    """Why `path` cannot be read as a file, with near names."""
    folder, name = posixpath.split(path)
    try:
        entries = {entry.name: entry.kind for entry in await context.sandbox.list(folder)}
    except PathError:
        return f"no file {path}: there is no folder {folder or '.'}"
    if name in entries:
        return f"{path} is a folder; use list_dir" if entries[name] == "folder" else f"{path} is not a regular file"
    near = difflib.get_close_matches(name, sorted(entries), n=NEAR_NAMES, cutoff=0.5)
    names = ", ".join(posixpath.join(folder, found) for found in near)
    return f"no file {path}; did you mean {names}?" if near else f"no file {path}; list_dir shows what there is"


def mark_read(context: ToolContext, path: str) -> None:
    context.state.setdefault("read", set()).add(path)


def was_read(context: ToolContext, path: str) -> bool:
    return path in context.state.get("read", ())


def shortened(line: str, limit: int) -> str:
    """A line cut at `limit` characters, with a statement of how much is left out."""
    return line if len(line) <= limit else f"{line[:limit]}... ({len(line) - limit} more characters)"
