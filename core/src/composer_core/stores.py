"""The built-in store: blobs as files below the run folder.

A blob's URI is its key, a path relative to the run folder ("traces/x.trace"), so a run folder that was moved or copied
still finds its traces. `put` writes beside the target and renames: a reader sees all of a blob or none, also with many
writers and after a kill. Checksums belong to the references that point here (`TraceRef`, `WeightsRef`), not here.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

from attrs import frozen

from composer_core.errors import StoreError
from composer_core.protocols import BuildContext

__all__ = [
    "FolderConfig",
    "FolderStore",
]

TEMPORARY = ".part-"
"""Prefix of files being written; no key may hold a part that starts with it."""


@frozen
class FolderConfig:
    sync: bool = False
    """Flush each blob to the disk (fsync) before its name appears: survives a power cut, costs milliseconds a blob."""


class FolderStore:
    """`protocols.Store` on a folder of the local machine."""

    def __init__(self, config: FolderConfig, build: BuildContext) -> None:
        self._config = config
        self._root = build.run_dir

    def put(self, key: str, data: bytes) -> str:
        path = self._path(key)
        part = path.with_name(f"{TEMPORARY}{uuid4().hex}")
        try:
            self._write(part, data)
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise StoreError(f"blob {key!r} could not be written: {error}", where=str(self._root)) from error
        if self._config.sync:
            _sync(path.parent)
        return key

    def get(self, uri: str) -> bytes:
        try:
            return self._path(uri).read_bytes()
        except OSError as error:
            fix = "the run folder may be incomplete, or the URI is of another run"
            raise StoreError(f"no blob {uri!r}: {error.strerror}", where=str(self._root), fix=fix) from error

    def list(self, prefix: str) -> list[str]:
        """URIs that start with `prefix`, sorted."""
        folder = self._path(prefix.rpartition("/")[0]) if "/" in prefix else self._root
        files = (path for path in folder.rglob("*") if not path.name.startswith(TEMPORARY) and path.is_file())
        keys = (path.relative_to(self._root).as_posix() for path in files)
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, uri: str) -> None:
        """Deleting a blob that is not there is no error."""
        self._path(uri).unlink(missing_ok=True)

    def _write(self, part: Path, data: bytes) -> None:
        try:
            handle = part.open("xb")
        except FileNotFoundError:  # first blob of its folder; rarer than an extra mkdir for each
            part.parent.mkdir(parents=True, exist_ok=True)
            handle = part.open("xb")
        with handle:
            handle.write(data)
            if self._config.sync:
                handle.flush()
                os.fsync(handle.fileno())

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        bad = any(part in ("", ".", "..") or part.startswith(TEMPORARY) for part in parts)
        if bad or "\\" in key or "\0" in key:
            expected = "parts joined by '/', none of them empty, '.' or '..', without backslash or NUL"
            raise StoreError("a blob's key is a path below the run folder", expected=expected, found=repr(key))
        return self._root.joinpath(*parts)


def _sync(folder: Path) -> None:
    """Makes a rename in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
