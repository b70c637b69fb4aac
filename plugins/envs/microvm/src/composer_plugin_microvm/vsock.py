"""The host's way to a port of a Firecracker machine: its Unix socket, and one line that names the port.

The line "CONNECT 1000" is answered with a line "OK" and a number once the guest has accepted; where nobody listens
Firecracker closes the connection. Source: docs/vsock.md of Firecracker.
"""

from __future__ import annotations

import asyncio
import socket
import time

from composer_core.errors import BackendError

TRY_S = 0.01
LONGEST = 32
"""Bytes of the answer's line."""


async def connect(folder: int, name: str, port: int, patience_s: float, ended: asyncio.Future[int]) -> socket.socket:
    """A connection to the port, once somebody listens there. `folder` is a descriptor (see `rest.Api`).

    Raises BackendError when patience or the machine ends.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            async with asyncio.timeout(max(end - time.monotonic(), TRY_S)):
                return await _connect(f"/proc/self/fd/{folder}/{name}", port)
        except (OSError, TimeoutError) as error:  # TimeoutError is an OSError; it is named for who reads this
            if time.monotonic() >= end or ended.done():
                raise BackendError("a machine's agent cannot be reached", found=str(error) or "no answer") from error
        await asyncio.sleep(TRY_S)


async def _connect(address: str, port: int) -> socket.socket:
    """Raises ConnectionError where nobody listens."""
    loop = asyncio.get_running_loop()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.setblocking(False)
        await loop.sock_connect(found, address)
        await loop.sock_sendall(found, f"CONNECT {port}\n".encode())
        line = b""
        while not line.endswith(b"\n"):  # byte by byte: what follows is the agent's
            part = await loop.sock_recv(found, 1)
            if not part or len(line) > LONGEST:
                raise ConnectionError("nobody listens there")
            line += part
        words = line.split()
        if len(words) != 2 or words[0] != b"OK" or not words[1].isdigit():
            raise ConnectionError(f"an answer of no sense: {line!r}")
    except BaseException:
        found.close()
        raise
    return found
