"""Walk and copy folders that a command may be changing meanwhile: every step by descriptor, no link is followed.

What is copied is the upper folder of an overlay. Laid over others, oldest first, it gives one that stands for all.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator

OPAQUE = "user.overlay.opaque"
DEEPEST = 200
"""Levels of folders that are looked into for changes."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def lay_below(source: str, target: str) -> None:
    """Lay an upper folder's content over another's: files, links, hard links, modes, times, whiteouts, opaque marks."""
    seen: dict[int, str] = {}
    a, b = os.open(source, _FOLDER), os.open(target, _FOLDER)
    try:
        _copy_folder(a, b, b, "", seen)
    finally:
        os.close(a)
        os.close(b)


def _copy_folder(a: int, b: int, root: int, path: str, seen: dict[int, str]) -> None:
    if is_opaque(a):
        for name in os.listdir(b):
            _remove(b, name)
        os.setxattr(b, OPAQUE, b"y")
    for name in os.listdir(a):
        try:
            info = os.stat(name, dir_fd=a, follow_symlinks=False)
            _copy_entry(a, b, root, path, name, info, seen)
        except FileNotFoundError:
            continue  # deleted while we copied
    info = os.fstat(a)
    os.fchmod(b, stat.S_IMODE(info.st_mode))
    os.utime(b, ns=(info.st_atime_ns, info.st_mtime_ns))


def _copy_entry(a: int, b: int, root: int, path: str, name: str, info: os.stat_result, seen: dict[int, str]) -> None:
    inner = f"{path}{name}"
    before = _made_room(b, name, stat.S_ISDIR(info.st_mode))
    if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
        if info.st_ino in seen:
            os.link(seen[info.st_ino], name, src_dir_fd=root, dst_dir_fd=b, follow_symlinks=False)
            return
        seen[info.st_ino] = inner
    if stat.S_ISDIR(info.st_mode):
        if before != "folder":
            os.mkdir(name, 0o755, dir_fd=b)
        below, onto = os.open(name, _FOLDER, dir_fd=a), os.open(name, _FOLDER, dir_fd=b)
        try:
            if before == "other":  # it hid whatever lies further below, and so must the folder
                os.setxattr(onto, OPAQUE, b"y")
            _copy_folder(below, onto, root, f"{inner}/", seen)
        finally:
            os.close(below)
            os.close(onto)
    elif stat.S_ISREG(info.st_mode):
        _copy_file(a, b, name)
    elif stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=a), name, dir_fd=b)
    elif stat.S_ISFIFO(info.st_mode) or is_whiteout(info):
        os.mknod(name, info.st_mode, info.st_rdev, dir_fd=b)


def _made_room(folder: int, name: str, for_folder: bool) -> str:
    """What stood there: "folder", "other", or "" for nothing. Only a folder that another is laid over still stands."""
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return ""
    if stat.S_ISDIR(info.st_mode) and for_folder:
        return "folder"
    _remove(folder, name)
    return "other"


def _remove(folder: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)


def _copy_file(a: int, b: int, name: str) -> None:
    source = os.open(name, _FILE, dir_fd=a)
    try:
        info = os.fstat(source)
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=b)
        try:
            while os.sendfile(target, source, None, 1 << 24):
                pass
            os.fchmod(target, stat.S_IMODE(info.st_mode))
            os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(target)
    finally:
        os.close(source)


def is_opaque(fd: int) -> bool:
    try:
        return os.getxattr(fd, OPAQUE) == b"y"
    except OSError:
        return False


def is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def touched(folder: str) -> Iterator[tuple[str, str]]:
    """(path, what) of everything an upper folder holds: file, other, gone (whiteout), opaque, or deep.

    Of a deep folder the content is not told: a command may nest them further than calls can follow.
    """
    fd = os.open(folder, _FOLDER)
    try:
        yield from _touched(fd, "", DEEPEST)
    finally:
        os.close(fd)


def _touched(fd: int, path: str, levels: int) -> Iterator[tuple[str, str]]:
    if not levels:
        yield path[:-1], "deep"
        return
    if path and is_opaque(fd):
        yield path[:-1], "opaque"
    for name in sorted(os.listdir(fd)):
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                below = os.open(name, _FOLDER, dir_fd=fd)
                try:
                    yield from _touched(below, f"{path}{name}/", levels - 1)
                finally:
                    os.close(below)
                continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield f"{path}{name}", ("gone" if is_whiteout(info) else "file" if stat.S_ISREG(info.st_mode) else "other")
