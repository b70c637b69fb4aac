"""The provider's end of a container's standard streams: numbers requests, matches answers, says when it is over.

What comes from the container is data of whoever may have taken it over: an answer nobody waits for is dropped, and
after a frame that is none the channel is closed.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from composer_core.errors import BackendError, ConfigError, PathError, QuotaError, SandboxError
from composer_envkit.agent import frames
from composer_envkit.agent.words import COMMANDS
from composer_plugin_docker.engine import close_response

ERRORS: dict[str, type[SandboxError]] = {"path": PathError, "quota": QuotaError, "backend": BackendError}
_HEAD = struct.Struct("!BxxxI")
STDERR = 2
LAST_WORDS_BYTES = 4096


class Ended(Exception):
    """The container's streams have ended, or it does not speak the protocol; the request's outcome is unknown."""


class Channel(asyncio.Protocol):
    """The requests under way to one agent."""

    def __init__(self) -> None:
        self.last_words = b""
        self.malformed = False
        self._transport: asyncio.Transport | None = None
        self._raw = bytearray()
        self._decoder = frames.Decoder()
        self._pending: dict[int, asyncio.Future[frames.Frame]] = {}
        self._number = 0
        self._over = False

    @classmethod
    async def open(cls, response: Any) -> Channel:
        self = cls()
        sock = getattr(response, "_sock", None)
        if sock is None or hasattr(sock, "context"):
            close_response(response)
            raise ConfigError("this engine's address cannot carry streams", expected="unix:// or tcp:// without TLS")
        sock = sock.dup()
        close_response(response)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)
        except BaseException:  # a caller that gave up among them
            sock.close()
            raise
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._raw += data
        while len(self._raw) >= _HEAD.size:
            stream, size = _HEAD.unpack_from(self._raw)
            if len(self._raw) < _HEAD.size + size:
                return
            chunk = bytes(self._raw[_HEAD.size : _HEAD.size + size])
            del self._raw[: _HEAD.size + size]
            if stream == STDERR:
                self.last_words = (self.last_words + chunk)[-LAST_WORDS_BYTES:]
            else:
                self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        try:
            for header, body in self._decoder.feed(chunk):
                number = header.get("n")
                future = self._pending.pop(number, None) if isinstance(number, int) else None
                if future is not None and not future.done():
                    future.set_result((header, body))
        except frames.Malformed as error:
            self.malformed, self.last_words = True, str(error).encode()
            self.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(Ended())

    async def ask(self, op: str, data: bytes = b"", **fields: Any) -> frames.Frame:
        """One request and its answer; a cancelled caller's command is ended, and any answer dropped. Raises Ended."""
        if self._over or self._transport is None:
            raise Ended()
        number = self._send(op, data, **fields)
        future: asyncio.Future[frames.Frame] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            header, body = await future
        except asyncio.CancelledError:
            self._pending.pop(number, None)
            if op in COMMANDS and not self._over:
                self._send("kill", number=number)
            raise
        if "error" in header:
            raise ERRORS.get(header["error"], BackendError)(str(header.get("message")))
        return header, body

    def _send(self, op: str, data: bytes = b"", **fields: Any) -> int:
        """The request's number."""
        assert self._transport is not None
        self._number += 1
        self._transport.write(frames.encode({"n": self._number, "op": op, **fields}, data))
        return self._number

    def close(self) -> None:
        """Ends the agent's input, and so the agent. Safe twice."""
        if self._transport is not None:
            self._transport.abort()
