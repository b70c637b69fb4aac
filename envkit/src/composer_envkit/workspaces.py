"""Workspaces as folders of this machine: laid out, copied, removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from composer_core.errors import BackendError
from composer_core.trees import Tree

P = ParamSpec("P")
R = TypeVar("R")


def lay(tree: Tree, folder: Path) -> None:
    """Write a tree into a folder, which is made; files that are there already are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in tree.files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)


async def copy(source: Path, target: Path) -> None:
    """Copy what a folder holds into another, which exists: links stay links, modes and times stay.

    Raises:
        OSError: it cannot be copied whole; what was copied until then is left.
    """
    error = await _host("cp", "-a", "--reflink=auto", "--", f"{source}/.", str(target))
    if error:
        raise OSError(error)


async def remove(folder: Path) -> None:
    """Delete a folder, if it is there, whatever commands have made of it.

    They may have closed it to its owner, or nested it deeper than `shutil.rmtree` can follow (a RecursionError).

    Raises:
        BackendError: something of it is still there.
    """
    if await _host("rm", "-rf", "--", str(folder)):
        await _host("chmod", "-R", "u+rwX", "--", str(folder))
        error = await _host("rm", "-rf", "--", str(folder))
        if error:
            raise BackendError("a folder cannot be removed", where=str(folder), found=error, fix="remove it by hand")


async def in_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run it in a thread. Cancelling waits for its end: whoever cleans up next must not meet it at work."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


async def _host(*argv: str) -> str:
    """Run a program of the host; what it complained about, "" if it went well. Cancelling it waits for its end."""
    null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=null, stderr=pipe)
    ending = asyncio.ensure_future(process.communicate())
    try:
        _, error = await asyncio.shield(ending)
    except asyncio.CancelledError:  # whoever cleans up next must not meet it at work
        await ending
        raise
    return (error.decode(errors="replace").strip() or f"{argv[0]} failed") if process.returncode else ""
