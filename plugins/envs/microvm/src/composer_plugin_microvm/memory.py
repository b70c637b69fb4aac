"""A machine's memory as pages: a base that all share and nobody can write, and what each has made different.

A machine's RAM is a private mapping of a sealed memory file. The kernel copies a page when it is first written, and
says in /proc/PID/pagemap which pages those are; they are all that a capture takes. A delta is always against the base,
so that a fork of a fork costs what its own changes cost. Nothing here has a name in a file system: what a process held
goes with it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re

from attrs import frozen

from composer_core.errors import BackendError

PAGE = mmap.PAGESIZE
ENTRY_BYTES = 8
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
OWN = bytes(int(bool(top & 0xC0) and not top & 0x20) for top in range(256))
"""Top byte of a page's entry -> 1 if it is in memory or swapped (bits 63, 62) and no page of a file (bit 61)."""
RUNS = re.compile(rb"\x01+")
CHUNK_BYTES = 1 << 24
PIECE_BYTES = 1 << 16


def memory_file(name: str, size: int = 0) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    return fd


def seal(fd: int) -> None:
    """From now on nobody can write it, not even a process of the same user that is given the descriptor."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)


def reopened(fd: int, flags: int = os.O_RDONLY) -> int:
    """The same file with a position of its own, at its start."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


def copy_sparse(source: int, target: int) -> None:
    """All data of a file, at its places; holes stay holes. The target is empty and as long."""
    at, size = 0, os.fstat(source).st_size
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # ENXIO: the rest is a hole
            return
        at = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(target, start, os.SEEK_SET)
        while start < at:
            start += os.sendfile(target, source, start, min(at - start, CHUNK_BYTES))


def copy_bytes(source: int, target: int) -> None:
    """A file's content into an empty one; what is zero becomes a hole."""
    size = os.fstat(source).st_size
    os.truncate(target, size)
    for at in range(0, size, PIECE_BYTES):
        data = os.pread(source, PIECE_BYTES, at)
        if data.count(0) < len(data):
            os.pwrite(target, data, at)


@frozen
class Delta:
    """Pages that differ from the base: runs of (first byte, bytes) in a memory file, one after the other."""

    fd: int
    runs: tuple[tuple[int, int], ...]
    size_bytes: int

    def close(self) -> None:
        os.close(self.fd)


def region(pid: int, size: int) -> int:
    """Where a machine's RAM lies in the address space of its process."""
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            place, _, _, _, _, *path = line.split(maxsplit=5)
            first, last = (int(part, 16) for part in place.split("-"))
            if path and "memfd:ram" in path[0] and last - first == size:
                return first
    raise BackendError("a machine's memory cannot be found", where=f"/proc/{pid}/maps")


def collect(pid: int, size: int) -> Delta:
    """The pages of a stopped machine that are its own."""
    start = region(pid, size)
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        entries = os.pread(file.fileno(), size // PAGE * ENTRY_BYTES, start // PAGE * ENTRY_BYTES)
    own = entries[ENTRY_BYTES - 1 :: ENTRY_BYTES].translate(OWN)
    runs = tuple((found.start() * PAGE, len(found[0]) * PAGE) for found in RUNS.finditer(own))
    total = sum(length for _, length in runs)
    target = memory_file("delta")
    source = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for at, length in runs:
            _copy(source, start + at, target, None, length)
    except OSError:
        os.close(target)
        raise
    finally:
        os.close(source)
    return Delta(target, runs, total)


def lay(delta: Delta, pid: int, size: int) -> None:
    """Write the pages into a machine that has not started."""
    if not delta.runs:
        return
    start, place = region(pid, size), 0
    target = os.open(f"/proc/{pid}/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        for at, length in delta.runs:
            _copy(delta.fd, place, target, start + at, length)
            place += length
    finally:
        os.close(target)


def _copy(source: int, at: int, target: int, to: int | None, length: int) -> None:
    """`to` None appends."""
    while length:
        data = os.pread(source, min(length, CHUNK_BYTES), at)
        if not data:
            raise BackendError("a machine's memory could not be read whole")
        if to is None:
            os.write(target, data)
        else:
            os.pwrite(target, data, to)
            to += len(data)
        at += len(data)
        length -= len(data)
