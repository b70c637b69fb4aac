"""File operations below a folder's descriptor that no link and no race can lead out of.

A path's text was checked by the framework, which never suffices: a folder can turn into a link between check and use.
Here the kernel resolves (openat2 with RESOLVE_BENEATH), and what was opened is examined through its descriptor. FIFOs
and devices are opened without blocking, and refused.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from composer_envkit.agent import linux

REASONS = {
    errno.ENOENT: "there is no such path",
    errno.ENOTDIR: "a part of the path is no folder",
    errno.EISDIR: "it is a folder",
    errno.EXDEV: "the path leads out of the workspace",
    errno.ELOOP: "the path is a chain of links that leads nowhere, or a link where none may be",
    errno.ENXIO: "it is no regular file",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EACCES: "permission denied",
}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
"""What a file system in memory says when there is no room, ENOMEM where a control group has none left."""
CALM = os.O_NONBLOCK | os.O_NOCTTY
SLACK_BYTES = 1 << 16
"""What a file may grow by while it is read, before a read is short."""


class Refused(Exception):
    """A request cannot be served; `kind` is path or quota, or what else an agent and its host agree on."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def refusal(error: OSError, path: str) -> Refused:
    if error.errno in FULL:
        return Refused("quota", f"{path!r}: the sandbox's disk is full")
    return Refused("path", f"{path!r}: {REASONS.get(error.errno or 0, os.strerror(error.errno or 0))}")


def is_text(name: str) -> bool:
    """Whether it is UTF-8; Python holds other bytes of a name, and whatever JSON can spell, as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(name: str) -> str:
    """A name as text, what is no UTF-8 escaped."""
    return name.encode(errors="backslashreplace").decode()


def read(folder: int, path: str, limit: int, links: bool = True) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file, and what it is."""
    try:
        fd = linux.open_beneath(folder, path, os.O_RDONLY | CALM, links=links)
    except OSError as error:
        raise refusal(error, path) from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise Refused("path", f"{path!r}: it is {'a folder' if stat.S_ISDIR(info.st_mode) else 'no regular file'}")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(min(limit, info.st_size + SLACK_BYTES) + 1) if info.st_size <= limit else b""
    finally:
        os.close(fd)
    if info.st_size > limit or len(data) > limit:
        raise Refused("quota", f"{path!r}: {info.st_size} bytes, the limit is {limit}")
    return data, info


def write(folder: int, path: str, data: bytes, limit: int, executable: bool | None = None) -> None:
    """Create or replace a regular file, and its parents. On a full disk the old content may be lost."""
    if len(data) > limit:
        raise Refused("quota", f"{path!r}: {len(data)} bytes, the limit is {limit}")
    try:
        fd = _open_for_write(folder, path)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Refused("path", f"{path!r}: it is no regular file")
            os.ftruncate(fd, 0)
            if executable is not None:
                os.fchmod(fd, 0o755 if executable else 0o644)
            write_all(fd, data)
        finally:
            os.close(fd)
    except OSError as error:
        raise refusal(error, path) from error


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _open_for_write(folder: int, path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | CALM
    try:
        return linux.open_beneath(folder, path, flags, 0o644)
    except FileNotFoundError:
        _make_parents(folder, path)
        return linux.open_beneath(folder, path, flags, 0o644)


def _make_parents(folder: int, path: str) -> None:
    at = os.dup(folder)
    try:
        for part in path.split("/")[:-1]:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
            below = linux.open_beneath(at, part, os.O_PATH | os.O_DIRECTORY)
            os.close(at)
            at = below
    finally:
        os.close(at)


def open_folder(folder: int, path: str, flags: int = os.O_PATH) -> int:
    """A descriptor of `path`; refused unless it is a folder below `folder`."""
    try:
        return linux.open_beneath(folder, path, flags | os.O_DIRECTORY)
    except OSError as error:
        raise refusal(error, path) from error


def listing(folder: int, path: str) -> list[tuple[str, str, int]]:
    """(name, kind, bytes) of a folder's entries, sorted by name; see `row`."""
    fd = open_folder(folder, path, os.O_RDONLY)
    try:
        with os.scandir(fd) as entries:
            return sorted(row(entry) for entry in entries)
    finally:
        os.close(fd)


def row(entry: os.DirEntry[str]) -> tuple[str, str, int]:
    """Kinds are file, folder and other. A name that is no UTF-8 is escaped, its kind other."""
    if not is_text(entry.name):
        return shown(entry.name), "other", 0
    if entry.is_dir(follow_symlinks=False):
        return entry.name, "folder", 0
    if not entry.is_file(follow_symlinks=False):
        return entry.name, "other", 0
    return entry.name, "file", entry.stat(follow_symlinks=False).st_size
