"""A small HTTP proxy that lets through what an allow-list names: CONNECT for anything, and plain HTTP.

It resolves names itself, looks at the address, and connects to that very address, so a name cannot lead elsewhere
between the two. Of plain HTTP one request is taken from a connection, in a form that cannot be read in two ways: the
host in the request's line counts and is told to the server, headers of this hop are left out (RFC 9110 section 7.6.1),
and a body has one length. What is said inside of a tunnel is not looked at.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

from composer_core.hosts import Address, Rule, address_of
from composer_envkit.http1 import Refusal, Request
from composer_envkit.policy import is_public, rules_of

HEAD_BYTES = 32 << 10
HEAD_S, CONNECT_S = 30.0, 20.0
COUNTED = 1000
"""Hosts whose refusals are counted apart."""
PIECE_BYTES = 1 << 16
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


class Stream(Protocol):
    """One end of a connection."""

    async def read(self) -> bytes:
        """Some bytes; none at the end."""

    async def write(self, data: bytes) -> None:
        """Raises OSError when nobody reads any more."""

    async def shut(self) -> None:
        """No more will be written."""

    async def close(self) -> None:
        """Safe twice."""


class Proxy:
    """Serves connections, one after another or at once; in one event loop."""

    def __init__(self, resolve: Resolve | None = None) -> None:
        self.rules: tuple[Rule, ...] = ()
        self.refused: Counter[str] = Counter()
        """How often which "host:port" was refused; "others" once there are many."""
        self.let_through = 0
        self._resolve = resolve or resolved
        self._live: dict[asyncio.Task[None], tuple[str, int, Address]] = {}

    def allow(self, allow: Sequence[str]) -> None:
        """From now on exactly these; connections to others are cut. Raises BackendError, and changes nothing then."""
        self.rules = rules_of(allow)
        for task, where in list(self._live.items()):
            if not self._permits(*where):
                task.cancel()

    def _takes(self, host: str, port: int) -> bool:
        return any(rule.takes(host, port) for rule in self.rules)

    def _permits(self, host: str, port: int, address: Address) -> bool:
        return self._takes(host, port) and (is_public(address) or self._takes(str(address), port))

    async def serve(self, stream: Stream) -> None:
        """One request, or one tunnel, to its end; closes the stream."""
        work = asyncio.ensure_future(self._serve(stream))
        try:
            await asyncio.wait([work])
        finally:
            self._live.pop(work, None)
            work.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await work
            await stream.close()

    async def _serve(self, stream: Stream) -> None:
        client = _Buffered(stream)
        try:
            request = await self._request(client)
            server = await self._connected(request)
        except Refusal as refusal:
            await stream.write(refusal.answer())
            return
        try:
            if request.method == "CONNECT":
                await stream.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _both(_pump(client, server), _pump(server, stream))
            else:
                await server.write(request.head())
                await _first(_pump(server, stream), _body(client, request, server))
        finally:
            await server.close()

    async def _request(self, client: _Buffered) -> Request:
        try:
            async with asyncio.timeout(HEAD_S):
                return Request.of(await client.until(b"\r\n\r\n", HEAD_BYTES))
        except TimeoutError as error:
            raise Refusal(400, "no request came") from error

    async def _connected(self, request: Request) -> Stream:
        """Raises Refusal."""
        host, port = request.host, request.port
        if not self._takes(host, port):
            raise self._refusal(host, port, "network.allow does not name it")
        literal = address_of(host)
        try:
            async with asyncio.timeout(CONNECT_S):
                found = [literal] if literal else await self._resolve(host, port)
                good = [address for address in found if self._permits(host, port, address)]
                if found and not good:
                    where = ", ".join(map(str, found))
                    raise self._refusal(host, port, f"it leads to {where}, not public and not in network.allow")
                return await self._first_of(good, host, port)
        except TimeoutError as error:
            raise Refusal(504, f"{host}:{port} did not answer in {CONNECT_S:g} s") from error

    async def _first_of(self, addresses: Sequence[Address], host: str, port: int) -> Stream:
        problem = "no address"
        for address in addresses:
            try:
                server = Tcp(*await asyncio.open_connection(str(address), port))
            except OSError as error:
                problem = error.strerror or str(error)
                continue
            if not self._permits(host, port, address):  # not any more
                await server.close()
                raise self._refusal(host, port, "network.allow names it no more")
            task = asyncio.current_task()
            assert task is not None
            self._live[task] = (host, port, address)
            self.let_through += 1
            return server
        raise Refusal(502, f"{host}:{port} cannot be reached: {problem}")

    def _refusal(self, host: str, port: int, why: str) -> Refusal:
        key = f"{host}:{port}"
        self.refused[key if key in self.refused or len(self.refused) < COUNTED else "others"] += 1
        return Refusal(403, f"{key} is not allowed: {why}")


async def resolved(host: str, port: int) -> Sequence[Address]:
    """Raises Refusal."""
    loop = asyncio.get_running_loop()
    try:
        rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Refusal(502, f"{host} cannot be resolved") from error
    found = (address_of(str(row[4][0])) for row in rows)
    return list(dict.fromkeys(address for address in found if address is not None))


# --- bytes on their way -------------------------------------------------------------------------------------------


class Tcp:
    """A `Stream` of asyncio's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        return await self._reader.read(PIECE_BYTES)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def shut(self) -> None:
        self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class _Buffered:
    """What a client says, by parts."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._data = stream, b""

    async def read(self) -> bytes:
        data, self._data = self._data, b""
        return data or await self._stream.read()

    async def until(self, mark: bytes, most: int) -> bytes:
        """What comes before the mark, which is taken too. Raises Refusal."""
        while mark not in self._data:
            more = await self._stream.read()
            self._data += more
            if not more or len(self._data) > most + PIECE_BYTES:
                raise Refusal(400, "the request is not HTTP/1.1, or too long")
        found, _, self._data = self._data.partition(mark)
        if len(found) > most:
            raise Refusal(400, "the request is too long")
        return found

    async def pieces(self, size: int) -> AsyncIterator[bytes]:
        """Exactly so many bytes. Raises Refusal."""
        while size:
            data = await self.read()
            if not data:
                raise Refusal(400, "the body ended early")
            piece, self._data = data[:size], data[size:]
            size -= len(piece)
            yield piece


async def _pump(source: Stream | _Buffered, target: Stream) -> None:
    while data := await source.read():
        await target.write(data)
    await target.shut()


async def _body(client: _Buffered, request: Request, server: Stream) -> None:
    """As long as was said, and nothing behind it. Chunks are spelled anew, trailers are left out."""
    if request.body_bytes is not None:
        async for piece in client.pieces(request.body_bytes):
            await server.write(piece)
        return
    while True:
        size = await client.until(b"\r\n", 64)
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,12}", size):
            raise Refusal(400, "the body is not in chunks")
        await server.write(b"%x\r\n" % int(size, 16))
        if not int(size, 16):
            break
        async for piece in client.pieces(int(size, 16)):
            await server.write(piece)
        if await client.until(b"\r\n", 0):
            raise Refusal(400, "the body is not in chunks")
        await server.write(b"\r\n")
    while await client.until(b"\r\n", HEAD_BYTES):
        continue
    await server.write(b"\r\n")


async def _both(*work: Coroutine[Any, Any, None]) -> None:
    """Each to its end; where one breaks the others are broken off."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _ended(tasks)


async def _first(main: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """`main` to its end, unless the other breaks before."""
    tasks = [asyncio.ensure_future(one) for one in (main, other)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] not in done and not tasks[1].exception():
            await tasks[0]
    finally:
        await _ended(tasks)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
