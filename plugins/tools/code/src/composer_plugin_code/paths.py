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
        raise ToolError(await instead(context, path)) from None
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


async def exists(context: ToolContext, path: str) -> bool:
    """Whether there is anything at `path`, a clean path."""
    folder, kinds = await _deepest(context, path)
    return not path or (folder == posixpath.dirname(path) and posixpath.basename(path) in kinds)


async def remove(context: ToolContext, path: str) -> None:
    """Delete a file; `path` is clean. Raises ToolError with what is there instead."""
    if not path:
        raise ToolError("the path is a folder; name a file in it")
    _, kinds = await _deepest(context, path)
    if not await exists(context, path) or kinds[posixpath.basename(path)] == "folder":
        raise ToolError(await instead(context, path))
    result = await context.sandbox.exec(["rm", "-f", "--", path])
    if result.status != "exited" or result.exit_code:
        raise ToolError(f"{path} cannot be deleted: {result.stderr.decode(errors='replace').strip() or result.status}")


def as_text(data: bytes, path: str) -> str:
    """A file's text; bytes that are no UTF-8 are shown as U+FFFD. ToolError for binary files."""
    if b"\0" in data[:8192]:
        raise ToolError(f"{path} is a binary file of {len(data)} bytes")
    return data.decode(errors="replace")


async def instead(context: ToolContext, path: str, wanted: str = "file") -> str:
    """Why there is no `wanted` (file, folder, or both) at `path`, a clean path; with names near the part that fails."""
    folder, kinds = await _deepest(context, path)
    there = posixpath.join(folder, path[len(folder) :].strip("/").split("/")[0])
    name, rest = posixpath.basename(there), path[len(there) :]
    if name in kinds and not rest:
        return f"{path} is {_use(kinds[name], wanted)}"
    if name in kinds:
        return f"no {wanted} {path}: {there} is no folder"
    near = difflib.get_close_matches(name, sorted(kinds), n=NEAR_NAMES, cutoff=0.5)
    names = ", ".join(posixpath.join(folder, found) + rest * (kinds[found] == "folder") for found in near)
    said = f"no {wanted} {path}" + (f": there is no folder {there}" if rest else "")
    if near:
        return f"{said}; did you mean {names}?"
    return said if rest else f"{said}; list_dir shows what there is"


def _use(kind: str, wanted: str) -> str:
    """What stands where something else was wanted."""
    if kind == "folder":
        return "a folder; use list_dir"
    return "a file; use read_file" if kind == "file" and wanted == "folder" else "not a regular file"


async def _deepest(context: ToolContext, path: str) -> tuple[str, dict[str, str]]:
    """The deepest folder above `path` that is there, and the kinds of its entries by name."""
    folder = path
    while folder:
        folder = posixpath.dirname(folder)
        try:
            return folder, {entry.name: entry.kind for entry in await context.sandbox.list(folder)}
        except PathError:
            continue
    return "", {}


def mark_read(context: ToolContext, path: str) -> None:
    context.state.setdefault("read", set()).add(path)


def was_read(context: ToolContext, path: str) -> bool:
    return path in context.state.get("read", ())


def shortened(line: str, limit: int) -> str:
    """A line cut at `limit` characters, with a statement of how much is left out."""
    return line if len(line) <= limit else f"{line[:limit]}... ({len(line) - limit} more characters)"
