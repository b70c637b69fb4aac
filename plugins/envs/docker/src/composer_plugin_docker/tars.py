"""Archives in the form that an engine takes, from names and what stands there."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import IO

from attrs import frozen

from composer_core.trees import Tree

MODIFIED_S = 946_684_800
"""Every file of a workspace was changed at the turn of the millennium, so equal trees give equal bytes."""


@frozen
class Whole:
    """A file by its bytes."""

    data: bytes
    executable: bool = False


@frozen
class Link:
    """A symbolic link."""

    target: str


Entries = dict[str, Whole | Link]
"""Absolute path in a container -> what stands there."""


def archive(entries: Mapping[str, Whole | Link], folders: Iterable[str] = ()) -> bytes:
    """An archive to be unpacked at the root; folders belong to root and may be entered by all."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, entries, {*folders, *(str(parent) for path in entries for parent in PurePosixPath(path).parents)})
    return buffer.getvalue()


def of_tree(tree: Tree, folder: str) -> Entries:
    return {f"{folder}/{file.path}": Whole(file.data, file.executable) for file in tree.files}


def write_paths(file: IO[bytes], root: str, paths: Sequence[str], beside: Entries, folders: Iterable[str]) -> None:
    """An archive of paths of this machine, each by itself and named from `root` on; with `beside` and `folders`."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in paths:
            info = tar.gettarinfo(path, arcname=os.path.relpath(path, root))
            if info is None:  # a socket
                continue
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mode &= 0o777
            if info.isreg():
                with open(path, "rb") as data:
                    tar.addfile(info, data)
            else:
                tar.addfile(info)
        there = {f"/{os.path.relpath(path, root)}" for path in paths}
        _add(tar, {path: entry for path, entry in beside.items() if path not in there}, {*folders} - there)


def _add(tar: tarfile.TarFile, entries: Mapping[str, Whole | Link], folders: Iterable[str]) -> None:
    for folder in sorted({*folders} - {"/"}):
        info = _named(folder)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    for path, entry in sorted(entries.items()):
        info = _named(path)
        if isinstance(entry, Link):
            info.type, info.linkname = tarfile.SYMTYPE, entry.target
            tar.addfile(info)
        else:
            info.mode, info.size = 0o755 if entry.executable else 0o644, len(entry.data)
            tar.addfile(info, io.BytesIO(entry.data))


def _named(path: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path.lstrip("/"))
    info.mtime = MODIFIED_S
    return info
