"""Where published weights lie: files by name in one folder of any file system that fsspec knows.

A name appears with all of its bytes or not at all. On a local disk (a shared one too) that is a file beside it and a
rename; object stores promise it of themselves. Elsewhere nobody is fooled either: whole files carry their checksum in
their name's record, and a record that was cut is no record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import fsspec
from fsspec.implementations.local import LocalFileSystem

from composer_core.errors import ConfigError, StoreError

PART = ".part-"
"""Prefix of names being written."""


class WeightStore:
    """Every call blocks: call it from a thread."""

    def __init__(self, url: str) -> None:
        """`url` is a folder, such as /shared/weights, s3://bucket/run or memory://weights.

        Raises:
            ConfigError: no file system of that name is installed, or the folder cannot be made.
        """
        try:
            self._fs, self._root = fsspec.url_to_fs(url)
            self.url: str = self._fs.unstrip_protocol(self._root)  # the same from any folder
            self._fs.makedirs(self._root, exist_ok=True)
        except (ValueError, ImportError, OSError) as error:
            fix = "name a folder, or install the fsspec file system of that scheme"
            raise ConfigError("no store for weights", found=f"{url!r}: {error}", fix=fix) from error

    def put_file(self, name: str, path: Path) -> None:
        with self._told(name), self._appearing(name) as target:
            self._fs.put_file(str(path), target)

    def put(self, name: str, data: bytes) -> None:
        with self._told(name), self._appearing(name) as target:
            self._fs.pipe_file(target, data)

    def get_file(self, name: str, path: Path) -> None:
        with self._told(name):
            self._fs.get_file(self._at(name), str(path))

    def get(self, name: str) -> bytes:
        with self._told(name):
            data: bytes = self._fs.cat_file(self._at(name))
            return data

    def names(self) -> list[str]:
        """What is there, sorted, without what is being written."""
        return [name for name in self._all() if not name.startswith(PART)]

    def sweep(self) -> None:
        """Remove what a writer that was killed had begun; called by the only writer."""
        for name in self._all():
            if name.startswith(PART):
                self.delete(name)

    def delete(self, name: str) -> None:
        """A name that is not there is no error."""
        with self._told(name), suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def _all(self) -> list[str]:
        with self._told(""):
            self._fs.invalidate_cache()
            return sorted(entry["name"].rpartition("/")[2] for entry in self._fs.ls(self._root, detail=True))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _appearing(self, name: str) -> Iterator[str]:
        if not isinstance(self._fs, LocalFileSystem):
            yield self._at(name)
            return
        part = self._at(f"{PART}{uuid4().hex}")
        try:
            yield part
            os.replace(part, self._at(name))
        finally:
            Path(part).unlink(missing_ok=True)

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each file system has errors of its own
            message = f"weights {name!r} cannot be moved: {type(error).__name__}: {error}"
            raise StoreError(message, where=self.url) from error
