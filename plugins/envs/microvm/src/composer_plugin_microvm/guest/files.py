"""File operations below a folder descriptor that no link and no race can lead out of.

The kernel resolves (openat2 with RESOLVE_BENEATH) and what was opened is examined through its descriptor: a folder may
turn into a link between a check and a use. FIFOs and devices are opened without waiting and refused. The agent may
open everything, so a file whose rights a command took away is still read.
"""

from __future__ import annotations

import errno
import os
import stat

from composer_plugin_microvm.guest import linux

NAMED = {
    errno.ENOENT: "there is no such path",
    errno.ENOTDIR: "a part of the path is no folder",
    errno.EISDIR: "it is a folder",
    errno.EXDEV: "the path leads out of the workspace",
    errno.ELOOP: "the path is a chain of links that leads nowhere, or a link where none may be",
    errno.ENXIO: "it is no regular file",
    errno.ENAMETOOLONG: "the name is too long",
}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SLACK_BYTES = 1 << 16
"""What a file may grow by while it is read, before a read is short."""
OWNER = 65534
"""User and group of the workspace and of every command."""


class Refused(Exception):
    """A path or a quota says no; `kind` is path or quota."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def refusal(error: OSError, path: str) -> Refused:
    if error.errno in FULL:
        return Refused("quota", f"{path!r}: the sandbox's disk is full")
    return Refused("path", f"{path!r}: {NAMED.get(error.errno or 0, os.strerror(error.errno or 0))}")


def is_text(name: str) -> bool:
    """Whether it is UTF-8; Python holds other bytes of a name as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def read(folder: int, path: str, limit: int, links: bool = True) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file, and what it is."""
    try:
        fd = linux.open_beneath(folder, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, links=links)
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
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
    except OSError as error:
        raise refusal(error, path) from error


def _open_for_write(folder: int, path: str) -> int:
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return linux.open_beneath(folder, path, flags)
    except FileNotFoundError:
        _make_parents(folder, path)
        fd = linux.open_beneath(folder, path, flags | os.O_CREAT, 0o644)
        os.fchown(fd, OWNER, OWNER)
        return fd


def _make_parents(folder: int, path: str) -> None:
    at = os.dup(folder)
    try:
        for part in path.split("/")[:-1]:
            try:
                after = linux.open_beneath(at, part, os.O_PATH | os.O_DIRECTORY)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=at)
                os.chown(part, OWNER, OWNER, dir_fd=at, follow_symlinks=False)
                after = linux.open_beneath(at, part, os.O_PATH | os.O_DIRECTORY, links=False)
            os.close(at)
            at = after
    finally:
        os.close(at)


def listing(folder: int, path: str) -> list[tuple[str, str, int]]:
    """(name, kind, bytes) of a folder's entries, sorted by name. One that is no UTF-8 is escaped, its kind "other"."""
    try:
        fd = linux.open_beneath(folder, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise refusal(error, path) from error
    try:
        with os.scandir(fd) as entries:
            return sorted(row(entry) for entry in entries)
    finally:
        os.close(fd)


def row(entry: os.DirEntry[str]) -> tuple[str, str, int]:
    if not is_text(entry.name):
        return entry.name.encode("utf-8", "backslashreplace").decode(), "other", 0
    if entry.is_dir(follow_symlinks=False):
        return entry.name, "folder", 0
    if not entry.is_file(follow_symlinks=False):
        return entry.name, "other", 0
    return entry.name, "file", entry.stat(follow_symlinks=False).st_size
