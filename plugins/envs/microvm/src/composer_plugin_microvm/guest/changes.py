"""What a workspace has changed against its template, told without reading what stands as it stood.

When the template is made each file's inode, size and times are noted beside a digest of its bytes. A command may set a
file's modification time but not the time of its last change, which the kernel writes; so equal notes are equal bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from composer_envkit.agent import files

DEEPEST = 200
"""Levels of folders that are looked into; a command may nest them without end."""
LONGEST = 4095
"""Bytes of a path that a system call takes; a command can reach further by going there step by step."""
Note = tuple[int, int, int, int]


class Known(NamedTuple):
    """A file of the template."""

    note: Note
    digest: bytes
    executable: bool


class Changes(NamedTuple):
    """`skipped` is over the limit, no regular file, no text, or a folder too deep to look into."""

    writes: list[tuple[str, bytes, bool]]
    deletes: list[str]
    skipped: list[str]


def note(info: os.stat_result) -> Note:
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def notes(root: int) -> dict[str, Known]:
    """Every file of a fresh workspace."""
    found = {}
    for path, folder, name, kind in walk(root):
        if kind == "file":
            data, info = files.read(folder, name, 1 << 62, links=False)
            found[path] = Known(note(info), hashlib.sha256(data).digest(), bool(info.st_mode & 0o100))
    return found


def walk(root: int) -> Iterator[tuple[str, int, str, str]]:
    """(path, descriptor of its folder, name, kind) of all that is no folder; a folder too deep is "other"."""
    yield from _below(os.dup(root), "", 0)


def _below(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, int, str, str]]:
    try:
        with os.scandir(folder) as entries:
            rows = [(entry.name, *files.row(entry)) for entry in entries]
        for name, shown, kind, _ in rows:
            beyond = len((prefix + shown).encode()) > LONGEST
            if kind != "folder":
                yield prefix + shown, folder, name, "other" if beyond else kind
                continue
            inner = -1 if beyond or depth >= DEEPEST else _open_folder(folder, name)
            if inner < 0:
                yield prefix + shown, folder, name, "other"
            else:
                yield from _below(inner, f"{prefix}{shown}/", depth + 1)
    finally:
        os.close(folder)


def _open_folder(folder: int, name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return -1  # it was removed or replaced meanwhile


def changes(root: int, known: dict[str, Known], limit: int) -> Changes:
    writes: list[tuple[str, bytes, bool]] = []
    skipped: list[str] = []
    kept = set()
    for path, folder, name, kind in walk(root):
        before = known.get(path)
        if kind == "other":
            skipped.append(path)
            continue
        if before and _untouched(folder, name, before):
            kept.add(path)
            continue
        try:
            data, info = files.read(folder, name, limit, links=False)
        except files.Refused:
            skipped.append(path)
            kept.add(path)
            continue
        kept.add(path)
        executable = bool(info.st_mode & 0o100)
        if before is None or before[1:] != (hashlib.sha256(data).digest(), executable):
            writes.append((path, data, executable))
    return Changes(sorted(writes), sorted(set(known) - kept), sorted(skipped))


def _untouched(folder: int, name: str, before: Known) -> bool:
    try:
        return note(os.stat(name, dir_fd=folder, follow_symlinks=False)) == before.note
    except OSError:
        return False
