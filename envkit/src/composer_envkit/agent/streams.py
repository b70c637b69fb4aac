"""What a command prints, drained to its end whatever it is, and what it is given to read."""

from __future__ import annotations

import os

CHUNK_BYTES = 1 << 16
PIPE_BYTES = 1 << 20
"""Most that a pipe holds, for whoever has no right to make it larger."""


class Stream:
    """One of a command's pipes: kept up to a cap, drained and counted beyond it, so that nobody waits for a reader."""

    def __init__(self, cap: int) -> None:
        self.cap, self.total, self.kept = cap, 0, bytearray()
        self.fd, self.theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)

    def drain(self) -> bool:
        """Read once; False at the end of the file."""
        try:
            data = os.read(self.fd, CHUNK_BYTES)
        except BlockingIOError:
            return True
        self.take(data)
        return bool(data)

    def begin(self, cap: int) -> None:
        """Forget what was printed so far, and keep this much of what comes."""
        self.settle()
        self.kept.clear()
        self.cap, self.total = cap, 0

    def take(self, data: bytes) -> None:
        self.total += len(data)
        self.kept += data[: max(0, self.cap - len(self.kept))]

    def finish(self) -> None:
        """Nobody can write any more: take what is still in the pipe."""
        before = -1
        while before != self.total:
            before = self.total
            self.drain()

    def settle(self) -> None:
        """Take what is in the pipe now; others may write on."""
        for _ in range(PIPE_BYTES // CHUNK_BYTES):
            before = self.total
            self.drain()
            if self.total == before:
                return

    def close(self) -> None:
        os.close(self.fd)


def source(data: bytes | int) -> int:
    """A descriptor, the caller's own, that a command reads `data` from, however slowly; or of what `data` is one of."""
    if isinstance(data, int):
        return os.dup(data)
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    fd = os.memfd_create("stdin")
    with open(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
