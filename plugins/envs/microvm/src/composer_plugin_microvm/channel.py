"""The host's end of a machine's agent. What comes out of it was written by the guest, and is believed to be data only.

Each request says how much it takes; a reply that is longer, a frame that is none, or one to a request that nobody made
ends the conversation: `broken` says why, and every request, pending and later, raises `Broken`.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import Any

from attrs import define, field

from composer_envkit.agent.frames import Malformed
from composer_plugin_microvm.guest import wire

SMALL_BYTES = 1 << 16
STREAMS = ("out", "err")


class Broken(Exception):
    """The conversation with a guest has ended; the message says why."""


@define
class Reply:
    """A reply as it comes: bodies by stream, then the header that ends it."""

    future: asyncio.Future[dict[str, Any]]
    limit: int
    """Most bytes of each stream."""
    bodies: dict[str, bytearray] = field(factory=dict)

    def take(self, name: str, data: bytes) -> None:
        body = self.bodies.setdefault(name, bytearray())
        if len(body) + len(data) > self.limit:
            raise Malformed(f"a reply of more than {self.limit} bytes")
        body += data

    def body(self, name: str = "data") -> bytes:
        return bytes(self.bodies.get(name, b""))


class Channel:
    """Numbers requests, matches replies."""

    def __init__(self) -> None:
        self.broken = ""
        self.nonsense = False
        """Whether it ended because of what the guest said."""
        self._transport: asyncio.Transport | None = None
        self._decoder = wire.Decoder()
        self._pending: dict[int, Reply] = {}
        self._number = secrets.randbelow(1 << 48)
        self._kept: list[bytes] | None = None
        self._stale: set[int] = set()

    async def open(self, ours: socket.socket) -> None:
        """Before anything is asked, and again after `unplug`. The socket is the channel's from now on."""
        if self.broken:
            ours.close()
            raise Broken(self.broken)
        await asyncio.get_running_loop().create_connection(lambda: _Line(self), sock=ours)

    def plugged(self, transport: asyncio.Transport) -> None:
        self._transport, self._decoder = transport, wire.Decoder()

    def unplug(self) -> None:
        """Leave a line on which nothing is being said (`hold`); it may end, and the conversation goes on on another."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def hears(self, transport: asyncio.BaseTransport | None) -> bool:
        """Whether this is the line in use; what comes on another is nobody's."""
        return transport is not None and transport is self._transport

    def data_received(self, data: bytes) -> None:
        try:
            for header, body in self._decoder.feed(data):
                self._take(header, body)
        except Malformed as error:
            self.nonsense = True
            self.end(f"the guest does not speak as its agent would: {error}")

    def _take(self, header: dict[str, Any], body: bytes) -> None:
        reply = self._pending.get(header["n"])
        if reply is None:
            if header["n"] not in self._stale:
                raise Malformed("an answer to no request")
            if not header.get("more"):
                self._stale.discard(header["n"])
            return
        name = header.get("k", "data")
        if name not in ("data", *STREAMS):
            raise Malformed("a stream of no name")
        reply.take(name, body)
        if not header.get("more"):
            del self._pending[header["n"]]
            if not reply.future.done():
                reply.future.set_result(header)

    def end(self, why: str) -> None:
        """Nothing is said or heard any more. Safe twice, the first reason holds."""
        self.broken = self.broken or why
        self.unplug()
        pending, self._pending = self._pending, {}
        for reply in pending.values():
            if not reply.future.done():
                reply.future.set_exception(Broken(self.broken))
                reply.future.exception()  # its caller may be gone

    def start(self, op: str, data: bytes = b"", limit: int = SMALL_BYTES, **fields: Any) -> tuple[int, Reply]:
        """Send a request now; its number, and the reply that will come."""
        self._number += 1
        reply = Reply(asyncio.get_running_loop().create_future(), limit)
        if self.broken or (self._transport is None and self._kept is None):
            reply.future.set_exception(Broken(self.broken or "not open"))
            return self._number, reply
        self._pending[self._number] = reply
        frames = wire.encode({"n": self._number, "op": op, **fields}, data)
        if self._kept is not None:
            self._kept.append(frames)
        elif self._transport is not None:
            self._transport.write(frames)
        return self._number, reply

    async def hold(self) -> None:
        """Nothing is on its way in either direction when this returns, until `release`. Raises Broken.

        A clone made meanwhile finds no half of a request that was meant for its parent, and no number in use there.
        """
        number, reply = self.start("hold")
        self._kept = []
        await self.wait(number, reply)

    async def release(self) -> None:
        """The guest speaks again, and is told what was to be said meanwhile. Raises Broken."""
        kept, self._kept = self._kept or [], None
        if self._transport is None:
            self.end("the line was not opened again")
        number, reply = self.start("go")
        if self._transport is not None and not self.broken:
            self._transport.write(b"".join(kept))
        await self.wait(number, reply)

    async def ask(
        self, op: str, data: bytes = b"", limit: int = SMALL_BYTES, **fields: Any
    ) -> tuple[dict[str, Any], Reply]:
        """A request and its reply. Raises Broken. A reply whose caller was cancelled is dropped when it comes."""
        number, reply = self.start(op, data, limit, **fields)
        return await self.wait(number, reply), reply

    async def wait(self, number: int, reply: Reply) -> dict[str, Any]:
        try:
            return await reply.future
        except asyncio.CancelledError:
            self.forget(number)
            raise

    def forget(self, number: int) -> None:
        """Its reply, should it come, is no news to anybody; the machine stays bounded in how much of it is held."""
        if self._pending.pop(number, None):
            self._stale.add(number)


class _Line(asyncio.Protocol):
    """One connection of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._channel.plugged(transport)

    def data_received(self, data: bytes) -> None:
        if self._channel.hears(self._transport):
            self._channel.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._channel.hears(self._transport):
            self._channel.end("the machine has ended")
