"""Firecracker's API: JSON over HTTP over a Unix socket, answered with 204, 200 and data, or 400 and a `fault_message`.

Source: firecracker.yaml, the API's published description. Calls are few and made one after the other on one connection,
in a thread, so an answer that takes long (a memory that is written) keeps nobody else waiting. Firecracker is not
trusted more than its guest, so an answer is bounded.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from typing import Any

from composer_core.errors import BackendError

ANSWER_S = 60.0
MAX_BYTES = 1 << 20


class Api:
    """The API of one Firecracker; `folder` is a descriptor of the folder that the socket `name` is in.

    A descriptor, since the path of a Unix socket may have 107 bytes and a folder's may have more.
    """

    def __init__(self, folder: int, name: str) -> None:
        self._connection = _Connection(f"/proc/self/fd/{folder}/{name}")
        self._one = threading.Lock()

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """What was answered, None for nothing. Raises BackendError where it refuses, does not answer, or is gone."""
        return await asyncio.to_thread(self._ask, method, path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        what = f"{method} {path}"
        with self._one:
            try:
                status, data = self._connection.exchange(method, path, body)
                said = json.loads(data) if data else None
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                self._connection.close()
                raise BackendError(f"Firecracker did not answer {what}: {error or type(error).__name__}") from error
        if status not in (200, 204):
            fault = said.get("fault_message") if isinstance(said, dict) else said
            raise BackendError(f"Firecracker refused {what}", found=str(fault)[:500])
        return said

    def close(self) -> None:
        self._connection.close()


class _Connection(http.client.HTTPConnection):
    """HTTP to a Unix socket."""

    def __init__(self, address: str) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(self._address)

    def exchange(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        self.putrequest(method, path, skip_accept_encoding=True)
        self.putheader("Accept", "application/json")
        if data is not None:
            self.putheader("Content-Type", "application/json")
            self.putheader("Content-Length", str(len(data)))
        self.endheaders(data)
        response = self.getresponse()
        found = response.read(MAX_BYTES + 1)
        if len(found) > MAX_BYTES:
            raise http.client.HTTPException(f"an answer of more than {MAX_BYTES} bytes")
        return response.status, found


def there(folder: int, name: str) -> bool:
    """Whether somebody listens on the socket `name`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(f"/proc/self/fd/{folder}/{name}")
        except OSError:
            return False
    return True
