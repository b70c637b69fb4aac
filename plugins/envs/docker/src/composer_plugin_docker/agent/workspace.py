"""The workspace as it is laid out, what has changed since, and a capture of it that another sandbox is made from.

Files are copied from the template into memory of the container's own, whose size is limited. Each is stamped with an
access time long past, and what the kernel says of it then is remembered. The file system moves the access time with
every access (strictatime), so a file whose mark is as it was has neither been written nor mapped: changes are found by
looking at names and marks, and only what may have changed is read and compared. (The owner of a file may ask the kernel
not to move the time. A command that does so and then writes through a mapping hides that write from its own patch.)
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from composer_envkit.agent import files, linux

DEEPEST = 200
"""Levels of folders that are looked into."""
PATH_BYTES = 4095
ENTER = 0o500
"""Rights that an owner needs to see what a folder holds."""
LONG_AGO_NS = 1_000_000_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NOATIME | os.O_CLOEXEC | files.CALM
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Mark = tuple[int, ...]
Row = list[Any]
"""Of a capture: [path, kind, mode, modified_ns, bytes or target].

Kinds: d folder, f file, l symbolic link, h hard link, p FIFO. Names are in hexadecimal, since they may be no text.
"""


class Workspace:
    """A folder in memory and the read-only template it was laid out from."""

    def __init__(self, folder: str, template: str) -> None:
        self.fd = os.open(folder, _FOLDER)
        self.template = os.open(template, os.O_PATH | os.O_DIRECTORY)
        self.marks: dict[str, Mark] = {}
        self.pristine: dict[str, bool] = {}
        """Every file of the template, and whether it is executable."""

    # --- laying out -------------------------------------------------------------------------------------------

    def lay(self, without: frozenset[str] | None = None) -> None:
        """Copy the template's files, but those of `without`; if that is given, folders are made by who calls."""
        for found in _walk(self.template):
            path = found.path
            if stat.S_ISDIR(found.info.st_mode):
                if without is None:
                    os.mkdir(path, 0o755, dir_fd=self.fd)
                continue
            self.pristine[path] = bool(found.info.st_mode & 0o100)
            if without is None or path not in without:
                self._copy(path, found.info)

    def _copy(self, path: str, info: os.stat_result) -> None:
        source = os.open(path, _FILE & ~os.O_NOATIME, dir_fd=self.template)
        target = os.open(path, _CREATE, 0o600, dir_fd=self.fd)
        try:
            while os.sendfile(target, source, None, 1 << 24):
                pass
            os.fchmod(target, stat.S_IMODE(info.st_mode))
            os.utime(target, ns=(LONG_AGO_NS, info.st_mtime_ns))
            self.marks[path] = _mark(os.fstat(target))
        finally:
            os.close(source)
            os.close(target)

    # --- what changed -----------------------------------------------------------------------------------------

    def changes(self, limit: int) -> tuple[list[Row], bytes, list[str], list[str]]:
        """(rows [path, bytes, executable], their bytes, deletes, skipped).

        Skipped: larger than `limit`, no regular file, a folder too deep, a name that is no text, out of reach.
        """
        rows: list[Row] = []
        parts: list[bytes] = []
        skipped: list[str] = []
        missing = dict(self.pristine)
        for found in _walk(self.fd):
            path, info = found.path, found.info
            if found.closed or not (found.is_folder or stat.S_ISREG(info.st_mode)) or not files.is_text(path):
                skipped.append(files.shown(path))
                continue
            if found.is_folder:
                continue
            if self.marks.get(path) == _mark(info):
                del missing[path]
                continue
            known = missing.pop(path, None)
            data = _bytes(found, limit)
            if data is None:
                skipped.append(path)
            elif known is None or (data, bool(info.st_mode & 0o100)) != (self._before(path), known):
                rows.append([path, len(data), bool(info.st_mode & 0o100)])
                parts.append(data)
        return rows, b"".join(parts), sorted(missing), sorted(skipped)

    def _before(self, path: str) -> bytes:
        with open(os.open(path, _FILE & ~os.O_NOATIME, dir_fd=self.template), "rb") as file:
            return file.read()

    # --- captures ---------------------------------------------------------------------------------------------

    def capture(self) -> tuple[list[Row], list[str], list[bytes]]:
        """(rows, template's files not as they were, bytes); what a running command writes may be half there."""
        untouched: set[str] = set()
        rows, parts = captured(self.fd, lambda found: self._untouched(found, untouched))
        return rows, [path for path in self.pristine if path not in untouched], parts

    def _untouched(self, found: Found, seen: set[str]) -> bool:
        if self.marks.get(found.path) != _mark(found.info):
            return False
        seen.add(found.path)
        return True


def captured(root: int, skip: Callable[[Found], bool] = lambda found: False) -> tuple[list[Row], list[bytes]]:
    """Everything below a folder that `skip` does not leave out, parents first."""
    rows: list[Row] = []
    parts: list[bytes] = []
    seen: dict[int, str] = {}
    for found in _walk(root):
        info = found.info
        if found.closed:
            where = files.shown(found.path)[:200]
            raise files.Refused("backend", f"something lies deeper than {DEEPEST} levels or out of reach: {where!r}")
        with suppress(FileNotFoundError):  # deleted while we copied
            if skip(found):
                continue
            name, kind = os.fsencode(found.path).hex(), stat.S_IFMT(info.st_mode)
            mode, modified = stat.S_IMODE(info.st_mode), info.st_mtime_ns
            if kind != stat.S_IFDIR and info.st_nlink > 1 and info.st_ino in seen:
                rows.append([name, "h", mode, modified, seen[info.st_ino]])
                continue
            if kind == stat.S_IFREG:
                with open(_open(found.folder, found.name, _FILE), "rb") as file:
                    parts.append(file.read())
                rows.append([name, "f", mode, modified, len(parts[-1])])
            elif kind == stat.S_IFLNK:
                rows.append(
                    [name, "l", mode, modified, os.fsencode(os.readlink(found.name, dir_fd=found.folder)).hex()]
                )
            elif kind in (stat.S_IFDIR, stat.S_IFIFO):
                rows.append([name, "d" if kind == stat.S_IFDIR else "p", mode, modified, 0])
            seen[info.st_ino] = name
    return rows, parts


def lay_rows(root: int, rows: list[Row], data: memoryview, then: Callable[[], None] = lambda: None) -> int:
    """Lay a capture into a folder, where nothing it names is yet, call `then`, and set modes of folders last.

    Returns how many bytes of `data` that took.
    """
    at, folders = 0, []
    for name, kind, mode, modified, more in rows:
        path = os.fsdecode(bytes.fromhex(name))
        if kind == "d":
            os.mkdir(path, 0o700, dir_fd=root)
            folders.append((path, mode, modified))
        elif kind == "f":
            _lay_file(root, path, mode, modified, data[at : at + more])
            at += more
        elif kind == "l":
            os.symlink(os.fsdecode(bytes.fromhex(more)), path, dir_fd=root)
            os.utime(path, ns=(modified, modified), dir_fd=root, follow_symlinks=False)
        elif kind == "h":
            os.link(os.fsdecode(bytes.fromhex(more)), path, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
        else:
            os.mkfifo(path, mode, dir_fd=root)
            os.utime(path, ns=(modified, modified), dir_fd=root)
    then()
    for path, mode, modified in reversed(folders):
        os.chmod(path, mode, dir_fd=root)
        os.utime(path, ns=(modified, modified), dir_fd=root)
    return at


def _lay_file(root: int, path: str, mode: int, modified: int, data: memoryview) -> None:
    fd = os.open(path, _CREATE, 0o600, dir_fd=root)
    try:
        files.write_all(fd, data)
        os.fchmod(fd, mode)
        os.utime(fd, ns=(modified, modified))
    finally:
        os.close(fd)


# --- walking a folder that commands may be changing meanwhile -----------------------------------------------------


class Found:
    """One entry: where it is, the open folder it is in, and what it was when it was met."""

    def __init__(self, path: str, name: str, folder: int, info: os.stat_result) -> None:
        self.path, self.name, self.folder, self.info = path, name, folder, info
        self.is_folder = stat.S_ISDIR(info.st_mode)
        self.closed = len(os.fsencode(path)) > PATH_BYTES
        """Out of reach: deeper or longer than a path may be, or a folder that cannot be opened."""


def _walk(root: int) -> Iterator[Found]:
    """Everything below, folders before what they hold; every step is by descriptor and follows no link."""
    mode = stat.S_IMODE(os.fstat(root).st_mode)
    shut = mode & ENTER != ENTER
    try:
        if shut:
            os.fchmod(root, mode | ENTER)
        fd = _open(root, ".", _FOLDER)
    finally:
        if shut:
            os.fchmod(root, mode)
    yield from _below(fd, "", DEEPEST)


def _below(fd: int, prefix: str, levels: int) -> Iterator[Found]:
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    shut = mode & ENTER != ENTER
    try:
        if shut:
            os.fchmod(fd, mode | ENTER)
        for name in sorted(os.listdir(fd)):
            try:
                found = Found(prefix + name, name, fd, os.stat(name, dir_fd=fd, follow_symlinks=False))
            except OSError:
                continue  # deleted meanwhile
            below = _opened(fd, name) if found.is_folder and levels and not found.closed else None
            found.closed |= found.is_folder and below is None
            yield found
            if below is not None:
                yield from _below(below, f"{found.path}/", levels - 1)
    finally:
        if shut:
            os.fchmod(fd, mode)
        os.close(fd)


def _bytes(found: Found, limit: int) -> bytes | None:
    """None for a file that is too large or out of reach."""
    try:
        with open(_open(found.folder, found.name, _FILE), "rb") as file:
            data = file.read(limit + 1)
    except OSError:
        return None
    return data if len(data) <= limit else None


def _opened(fd: int, name: str) -> int | None:
    try:
        return _open(fd, name, _FOLDER)
    except OSError:
        return None


def _open(folder: int, name: str, flags: int) -> int:
    """Open what is ours even if a command has taken its owner's rights away; they are given back."""
    try:
        return linux.open_beneath(folder, name, flags, links=False)
    except PermissionError:
        mode = stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        os.chmod(name, mode | 0o700, dir_fd=folder)
        try:
            return linux.open_beneath(folder, name, flags, links=False)
        finally:
            os.chmod(name, mode, dir_fd=folder)


def _mark(info: os.stat_result) -> Mark:
    return info.st_ino, info.st_mode, info.st_size, info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns
