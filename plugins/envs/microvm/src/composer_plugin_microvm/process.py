"""A monitor's process (QEMU, Firecracker): confined, heard, and killed by the kernel when this process dies.

Nothing that a monitor prints is waited for: a full pipe keeps the monitor waiting, which is its guest's loss.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

LAST_BYTES = 2000
GONE_S = 5.0
"""How long all processes of a monitor may take to be gone once they are killed, which the kernel does by itself."""


class Process:
    """A running process group; made within an event loop. `close` is safe twice."""

    def __init__(
        self,
        words: Sequence[str],
        fds: Sequence[int] = (),
        confined: Sequence[str] = (),
        cwd: Path = Path("/"),
        before: Sequence[str] = (),
    ) -> None:
        """`confined` are further words of `setpriv`, `before` those of a program that runs it. Raises OSError."""
        self.popen = subprocess.Popen(
            [*before, "setpriv", "--no-new-privs", "--pdeathsig", "KILL", *confined, "--", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=tuple(fds), cwd=cwd,
            env={"LANG": "C.UTF-8", "PATH": os.defpath}, start_new_session=True,
        )  # fmt: skip
        self.pid = self.popen.pid
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        """Its exit status once it has ended; negative for a signal."""
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._reap)
        self._pipes = [pipe for pipe in (self.popen.stderr, self.popen.stdout) if pipe]
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        status = self.popen.wait()
        os.close(self._pidfd)
        if not self.ended.done():
            self.ended.set_result(status)

    async def last_words(self) -> str:
        """What it printed last, and its guest on the console."""
        await asyncio.wait([self.ended], timeout=0.2)
        found = [pipe.read(1 << 16) or b"" for pipe in self._pipes if not pipe.closed]
        return b"\n".join(text[-LAST_BYTES:] for text in found).decode(errors="replace").strip()

    async def close(self) -> None:
        """End it and whatever it started, and wait until all are gone."""
        try:
            if not self.ended.done():
                os.killpg(self.pid, signal.SIGKILL)
                await asyncio.shield(self.ended)
            await self._all_gone()
        finally:
            for pipe in self._pipes:
                pipe.close()

    async def _all_gone(self) -> None:
        """The pipe ends when nobody holds its other end any more."""
        end = time.monotonic() + GONE_S
        pipe = self._pipes[0]
        while not pipe.closed and pipe.read(1 << 16) != b"" and time.monotonic() < end:
            await asyncio.sleep(0.001)
