"""What a killed server left, and nothing else.

Everything that a provider starts below a server has the server's scratch folder, whose name is random, as its place: in
its environment (`TMPDIR`, or what the provider made of it), or as its working folder or root. That is how an orphan is
told from a stranger. A number alone says nothing, it may have been given to another; a process is held by a descriptor,
looked at again, and only then killed. Whoever has a terminal is a person looking at the leftovers, and is spared.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from composer_core.errors import ComposerError
from composer_core.protocols import SandboxProvider
from composer_plugin_server.ledger import Past

PROC = Path("/proc")
ROUNDS = 20
"""Times the list of processes is gone through: what is being killed may still start others."""


async def reap(past: Past, provider: SandboxProvider, same_provider: bool) -> int:
    """End what `past` tells of; how many sandboxes and processes that were."""
    count = len(past.sandboxes) + await asyncio.to_thread(kill_all, past.scratch)
    for backend in filter(None, past.sandboxes.values()) if same_provider else ():
        with suppress(ComposerError, LookupError):  # that it is gone is what is expected
            await (await provider.attach(backend)).destroy()
    await remove(past.scratch)
    return count


def kill_all(scratch: Path) -> int:
    """Kill every process whose place is the folder; how many there were."""
    killed: set[int] = set()
    for _ in range(ROUNDS):
        found = list(_of(scratch))
        if not found:
            break
        killed.update(pid for pid in found if _kill(pid, scratch))
    return len(killed)


def _of(scratch: Path) -> Iterator[int]:
    own = os.getpid()
    return (int(path.name) for path in PROC.glob("[0-9]*") if int(path.name) != own and belongs(path, scratch))


def belongs(process: Path, scratch: Path) -> bool:
    """Whether a process (its folder in /proc) has its place below `scratch` and no terminal."""
    name = os.fsencode(str(scratch))
    try:
        fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] in b"ZX" or fields[4] != b"0":
            return False
        if any(_below(os.readlink(os.fsencode(process / link)), name) for link in ("cwd", "root")):
            return True
        values = (value.partition(b"=")[2] for value in (process / "environ").read_bytes().split(b"\0"))
        return any(_below(value, name) for value in values)
    except OSError:  # it has ended, or is another user's
        return False


def _below(path: bytes, folder: bytes) -> bool:
    path = path.removesuffix(b" (deleted)")
    return path == folder or path.startswith(folder + b"/")


def _kill(pid: int, scratch: Path) -> bool:
    try:
        held = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not belongs(PROC / str(pid), scratch):  # the number is another's by now
            return False
        signal.pidfd_send_signal(held, signal.SIGKILL)
        return True
    except OSError:
        return False
    finally:
        os.close(held)


async def remove(folder: Path) -> None:
    """Delete a folder whatever commands have made of it; what cannot be deleted is left."""
    for argv in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        if not folder.exists():
            return
        null = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*argv, "--", str(folder), stdout=null, stderr=null)
        await process.wait()
