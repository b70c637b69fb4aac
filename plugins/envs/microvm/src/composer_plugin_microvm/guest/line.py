"""The way to the host: a serial port, which is always there, or a vsock port, to which the host connects anew.

A vsock connection ends when the machine is captured, for the machine that goes on as for its clones; the port is
listened on throughout. What was to be sent and was not sent whole is sent again from its start on the next connection;
the host leaves a connection only while nothing is being said (`hold`), so nothing is lost or said twice.

Nobody in the machine can connect: the only transport of vsock is the one to the host, and `system` lets no module be
loaded any more.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable

from composer_plugin_microvm.guest import PORT, VSOCK, VSOCK_PORT

CHUNK_BYTES = 1 << 16
LOST = BrokenPipeError, ConnectionError


class Line:
    """Bytes to and from the host. `receive` takes what comes, `fresh` is told of each new connection."""

    def __init__(
        self, selector: selectors.BaseSelector, receive: Callable[[bytes], None], fresh: Callable[[], None]
    ) -> None:
        self._selector, self._receive, self._fresh = selector, receive, fresh
        self._outgoing: deque[bytes] = deque()
        self._sent = 0
        self._fd = -1
        self._serial = False
        self.silent = False
        """While it is, nothing is sent; what is to be sent is kept."""

    def open(self) -> None:
        """Exits where there is no way to the host."""
        with open("/proc/cmdline") as file:
            vsock = VSOCK in file.read().split()
        if not vsock:
            self._serial = True
            self._plug(_serial())
            return
        listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        listener.bind((socket.VMADDR_CID_ANY, VSOCK_PORT))
        listener.listen(4)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it is gone again
            return
        self._unplug()
        self._plug(connection.detach())

    def _plug(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd, self._sent = fd, 0
        self._selector.register(fd, selectors.EVENT_READ, self._read)
        self._fresh()
        self.flush()

    def _unplug(self) -> None:
        if self._fd >= 0:
            self._selector.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except LOST:
            data = b""
        if data:
            self._receive(data)
        elif self._serial:  # the host has closed its end, and will end the machine
            time.sleep(0.05)
        else:
            self._unplug()

    def send(self, data: bytes) -> None:
        self._outgoing.append(data)
        self.flush()

    def drop(self) -> None:
        """Forget what is to be sent."""
        self._outgoing.clear()
        self._sent = 0

    def flush(self, patience_s: float = 0.0) -> None:
        """Send what the host takes now, or within this time."""
        end = time.monotonic() + patience_s
        while self._send() and time.monotonic() < end:
            time.sleep(0.0005)
        self._watch()

    def _send(self) -> bool:
        """Whether the host has to take more before all is sent."""
        while self._outgoing and not self.silent and self._fd >= 0:
            try:
                self._sent += os.write(self._fd, memoryview(self._outgoing[0])[self._sent :])
            except BlockingIOError:
                return True
            except LOST:
                self._unplug()
                return False
            if self._sent == len(self._outgoing[0]):
                self._outgoing.popleft()
                self._sent = 0
        return False

    def _watch(self) -> None:
        if self._fd < 0:
            return
        waits = bool(self._outgoing) and not self.silent
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
        key = self._selector.get_key(self._fd)
        if key.events != wanted:
            self._selector.modify(self._fd, wanted, key.data)


def _serial() -> int:
    """The port by its name: numbers are the host's business."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for name in os.listdir("/sys/class/virtio-ports"):
            with open(f"/sys/class/virtio-ports/{name}/name") as file:
                if file.read().strip() == PORT:
                    return os.open(f"/dev/{name}", os.O_RDWR)
        time.sleep(0.01)
    sys.exit("no port to the host")
