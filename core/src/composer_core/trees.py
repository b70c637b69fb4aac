"""Folders as values: a tree of files, its content address, and the patch between two trees.

A workspace is named by `TreeRef(sha256)` and never by a host path, so a task, a template and a grader agree on bytes
wherever they run. Only regular files are held; links, devices and FIFOs in a workspace are not part of its tree.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from attrs import field, frozen

from composer_core.errors import ConfigError

__all__ = [
    "SCRATCH",
    "File",
    "Patch",
    "Tree",
    "TreeRef",
]


@frozen(order=True)
class TreeRef:
    """Content address of a `Tree`."""

    sha256: str


@frozen(order=True)
class File:
    """One regular file; `path` is relative, with forward slashes, and never leaves the tree."""

    path: str
    data: bytes = field(repr=False)
    executable: bool = False

    def __attrs_post_init__(self) -> None:
        parts = self.path.split("/")
        if not self.path or self.path.startswith("/") or any(part in ("", ".", "..") for part in parts):
            raise ConfigError("a tree holds relative paths only", found=repr(self.path))


def _files(files: Iterable[File]) -> tuple[File, ...]:
    return tuple(sorted(files, key=attrgetter("path", "data", "executable")))  # attrs makes two tuples a comparison


def _paths(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(paths))


@frozen
class Tree:
    """Files sorted by path; equal trees have equal references."""

    files: tuple[File, ...] = field(converter=_files)

    @classmethod
    def of(cls, texts: Mapping[str, str | bytes]) -> Tree:
        """From path -> content."""
        files = (File(path, text.encode() if isinstance(text, str) else text) for path, text in texts.items())
        return cls(tuple(files))

    @property
    def ref(self) -> TreeRef:
        digest = hashlib.sha256()
        for file in self.files:
            head = f"{len(file.path.encode())} {len(file.data)} {int(file.executable)}\0".encode()
            digest.update(head + file.path.encode() + file.data)
        return TreeRef(digest.hexdigest())

    def paths(self) -> dict[str, File]:
        return {file.path: file for file in self.files}

    def find(self, path: str) -> File | None:
        """The file at `path`, without building a table of all."""
        place = bisect_left(self.files, path, key=lambda file: file.path)
        found = self.files[place] if place < len(self.files) else None
        return found if found and found.path == path else None


SCRATCH = ".agent"
"""Folder of a workspace in which tools may leave what the agent is to read; it is no part of a patch."""
REPOSITORY = ".git"
"""What an agent commits is no part of a patch; the files that it has changed are."""


@frozen
class Patch:
    """What an agent changed: files written whole, and paths deleted. The declared artifact that is graded."""

    writes: tuple[File, ...] = field(default=(), converter=_files)
    deletes: tuple[str, ...] = field(default=(), converter=_paths)
    skipped: tuple[str, ...] = ()
    """Changed paths that are no regular file (links, FIFOs) or over the size limit; never applied."""

    @classmethod
    def between(cls, before: Tree, after: Tree) -> Patch:
        old, new = before.paths(), after.paths()
        return cls(
            tuple(file for path, file in new.items() if old.get(path) != file),
            tuple(path for path in old if path not in new),
        )

    def only(self, keep: Callable[[str], bool]) -> Patch:
        """The part of the patch whose paths satisfy `keep`."""
        return Patch(
            tuple(file for file in self.writes if keep(file.path)),
            tuple(path for path in self.deletes if keep(path)),
            self.skipped,
        )

    def apply(self, tree: Tree) -> Tree:
        files = {path: file for path, file in tree.paths().items() if path not in set(self.deletes)}
        files.update({file.path: file for file in self.writes})
        return Tree(tuple(files.values()))

    def touched(self) -> Iterable[str]:
        return sorted({file.path for file in self.writes} | set(self.deletes))

    def __bool__(self) -> bool:
        return bool(self.writes or self.deletes)
