"""Commands of one sandbox that are processes here, be it of this user or of a program that puts walls around them
(`bwrap`, `docker exec`, `ssh`).

What a command owes its user is the same for all: output is kept up to a cap and counted to its end, a time limit keeps
what was printed, and what a command started ends with it. Nothing here isolates.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from composer_core.protocols import ExecRequest, ExecResult

DRAIN_S = 1.0
"""How long pipes are still read once a command's group was killed: a process that left the group may hold them open."""


class Processes:
    """The commands that run for one sandbox. Not for several event loops."""

    def __init__(self) -> None:
        self._running: dict[int, _Command] = {}
        self._killed = False

    async def run(
        self,
        request: ExecRequest,
        cwd: Path,
        env: Mapping[str, str],
        *,
        pass_fds: Sequence[int] = (),
        not_started: Callable[[str, OSError | ValueError], ExecResult] | None = None,
    ) -> ExecResult:
        """Run a command as the leader of a process group, and kill the group at its end; cancelling kills it too.

        `env` is all of its environment, `pass_fds` are descriptors it gets beside its streams. What cannot be started
        exits as a shell says it: with 127 if the command is not found, else with 126; `not_started` may say otherwise.
        """
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            transport, command = await loop.subprocess_exec(
                lambda: _Command(request.output_bytes),
                *request.argv,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
                pass_fds=pass_fds,
            )
        except (OSError, ValueError) as error:
            return (not_started or as_a_shell_says)(request.argv[0], error)
        pid = transport.get_pid()
        self._running[pid] = command
        try:
            stdin: Any = transport.get_pipe_transport(0)
            stdin.write(request.stdin)
            stdin.write_eof()
            with suppress(TimeoutError):
                await asyncio.wait_for(command.exited.wait(), 0 if self._killed else request.timeout_s)
            late = not (command.exited.is_set() or self._killed)
        finally:
            _kill(pid)
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(command.closed.wait(), DRAIN_S)
            finally:  # cancelled once more: `pid` may soon be another's
                transport.close()
                del self._running[pid]
        return command.result(None if late else transport.get_returncode(), loop.time() - started_s)

    async def kill(self) -> None:
        """End all commands and wait until they have let go of their files; what is started later ends at once."""
        self._killed = True
        commands = dict(self._running)
        for pid in commands:
            _kill(pid)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(command.closed.wait() for command in commands.values())), DRAIN_S)


class _Command(asyncio.SubprocessProtocol):
    """The heads of a command's streams, how long they were, and how far it has come."""

    def __init__(self, cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self.kept = {1: bytearray(), 2: bytearray()}
        self.total = {1: 0, 2: 0}
        self.exited, self.closed = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.total[fd] += len(data)
        self.kept[fd] += data[: self.cap_bytes - len(self.kept[fd])]

    def process_exited(self) -> None:
        """The command itself; others of its group may still hold its pipes."""
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The command has ended and nobody holds its pipes any more."""
        self.closed.set()

    def result(self, code: int | None, wall_s: float) -> ExecResult:
        """`code` is None for a command that did not end in time, negative for one that a signal ended."""
        status = "timeout" if code is None else "signaled" if code < 0 else "exited"
        return ExecResult(
            status,
            code if status == "exited" else None,
            bytes(self.kept[1]),
            bytes(self.kept[2]),
            self.total[1],
            self.total[2],
            wall_s,
            -code if code is not None and code < 0 else None,
        )


def as_a_shell_says(name: str, error: OSError | ValueError) -> ExecResult:
    """The result of a command that could not be started."""
    reason = error.strerror if isinstance(error, OSError) else error
    text = f"{name}: {reason}\n".encode(errors="replace")
    code = 127 if isinstance(error, FileNotFoundError) else 126
    return ExecResult("exited", code, stderr=text, stderr_bytes=len(text))


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
