"""The host's end of the relay: a Unix socket as Firecracker has it for vsock, one line and then bytes."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from contextlib import suppress

HEAD = struct.Struct(">cIH")
"""As in `relay`."""
FIRST_PORT = 1 << 30


class Bridge:
    """`serve` a path, `carry` on the socket to the guest, `reset` when a snapshot ends all connections."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._number = self._cuts = 0
        self._guest: asyncio.StreamWriter | None = None
        self._opened: dict[int, asyncio.Future[bool]] = {}
        self._hosts: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Raises OSError where the path is taken, as Firecracker does."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path)
        await asyncio.start_unix_server(self._host, sock=listener)

    async def carry(self, ours: socket.socket) -> None:
        reader, self._guest = await asyncio.open_connection(sock=ours)
        task = asyncio.ensure_future(self._hear(reader))
        self._tasks.add(task)

    def cut(self) -> None:
        """The machine is saved: by turns the host's ends are closed at once, or stay open and hear nothing more."""
        self._cuts += 1
        for writer in self._hosts.values():
            if self._cuts % 2:
                writer.close()
        self._hosts.clear()

    def reset(self) -> None:
        """The machine goes on: the guest closes all that was open."""
        self._send(b"R", 0)

    def _send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        assert self._guest is not None
        self._guest.write(HEAD.pack(kind, number, len(data)) + data)

    async def _host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._number += 1
        number = self._number
        try:
            line = await reader.readuntil(b"\n")
            match = re.fullmatch(rb"CONNECT (\d{1,10})\n", line)
            if match is None or self._guest is None:
                return
            opened = self._opened[number] = asyncio.get_running_loop().create_future()
            self._hosts[number] = writer
            self._send(b"C", number, match[1])
            if not await opened:
                return
            writer.write(b"OK %d\n" % (FIRST_PORT + number))
            while data := await reader.read(1 << 14):
                if number in self._hosts:
                    self._send(b"D", number, data)
            if self._hosts.pop(number, None):
                self._send(b"X", number)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, number, length = HEAD.unpack(await reader.readexactly(HEAD.size))
                data = await reader.readexactly(length)
                writer = self._hosts.get(number)
                if kind in (b"O", b"X") and number in self._opened and not self._opened[number].done():
                    self._opened[number].set_result(kind == b"O")
                elif kind == b"D" and writer:
                    writer.write(data)
                elif kind == b"X" and writer:
                    del self._hosts[number]
                    writer.close()
