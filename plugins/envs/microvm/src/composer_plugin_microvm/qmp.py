"""QEMU's control channel: one JSON object a line, descriptors beside it, and why a machine ended.

QEMU is not trusted more than its guest (whoever breaks out of one is the other), so a line is bounded and must be an
object. Commands are few and answered in order.
"""

from __future__ import annotations

import array
import asyncio
import json
import socket
from collections import deque
from typing import Any

from composer_core.errors import BackendError

MAX_LINE = 1 << 20
CHUNK_BYTES = 1 << 16
DRAINED = 64
"""Most chunks that are read of what was not read yet when a machine's end is looked into."""
ANSWER_S = 20.0


class Qmp:
    """The host's end of a machine's control channel; made within an event loop."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self.ready: asyncio.Future[Any] = self._loop.create_future()
        self.end_reason = ""
        """What QEMU said of the guest's end: "guest-reset", "host-signal", ...; empty if it said nothing."""
        ours.setblocking(False)
        self._loop.add_reader(ours.fileno(), self._read)

    def _read(self) -> bool:
        """Whether there may be more to read."""
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._buffer += data
        if not data or len(self._buffer) > MAX_LINE:
            self.close()
            return False
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            if line.strip():
                self._take(bytes(line))
        return True

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            self.close()
            return
        if not isinstance(said, dict):
            self.close()
        elif "QMP" in said:
            if not self.ready.done():
                self.ready.set_result(None)
        elif said.get("event") == "SHUTDOWN":
            data = said.get("data")
            self.end_reason = str(data.get("reason", "")) if isinstance(data, dict) else ""
        elif self._waiting and ("return" in said or "error" in said):
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(said)

    def post(self, command: str, fds: tuple[int, ...] = (), /, **arguments: Any) -> asyncio.Future[Any]:
        """Send a command; its answer comes in the future. What is posted in a row is carried out in a row."""
        future: asyncio.Future[Any] = self._loop.create_future()
        line = json.dumps({"execute": command, "arguments": {k.replace("_", "-"): v for k, v in arguments.items()}})
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._socket.sendmsg([line.encode() + b"\n"], passed)
        except OSError as error:
            future.set_exception(BackendError(f"QEMU takes no command: {error}"))
        else:
            self._waiting.append(future)
        return future

    async def ask(self, command: str, fds: tuple[int, ...] = (), /, **arguments: Any) -> Any:
        """Raises BackendError where QEMU refuses, does not answer, or is gone."""
        return await self.answer(self.post(command, fds, **arguments), command)

    async def answer(self, future: asyncio.Future[Any], command: str) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                said = await future
        except TimeoutError as error:
            raise BackendError(f"QEMU did not answer {command} in {ANSWER_S:g} s") from error
        if "error" in said:
            raise BackendError(f"QEMU refused {command}", found=str(said["error"])[:300])
        return said["return"]

    def drain(self) -> None:
        """Take what QEMU has said by now, and no more than a socket holds, whether it has ended or hangs."""
        for _ in range(DRAINED):
            if not self._read():
                return

    def close(self) -> None:
        """Safe twice; whoever waits is told."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for future in (*self._waiting, self.ready):
            if not future.done():
                future.set_exception(BackendError("QEMU has ended"))
                future.exception()  # nobody may be waiting any more
        self._waiting.clear()
