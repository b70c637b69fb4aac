"""Folders as values: a tree of files, its content address, and the patch between two trees.

A workspace is named by `TreeRef(sha256)` and never by a host path, so a task, a template and a grader agree on bytes
wherever they run. Only regular files are held; links, devices and FIFOs in a workspace are not part of its tree.
"""

from __future__ import annotations

import difflib
import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

from attrs import field, frozen

from composer_core.errors import ConfigError

__all__ = [
    "File",
    "Patch",
    "Tree",
    "TreeRef",
    "unified",
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
    return tuple(sorted(files))


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


def unified(before: Iterable[File], patch: Patch) -> str:
    """The patch as a unified diff against `before`, which holds at least the touched files of the original tree."""
    old = {file.path: file for file in before}
    new = {file.path: file for file in patch.writes}
    return "".join(line for path in patch.touched() for line in _diff_of(path, old.get(path), new.get(path)))


def _diff_of(path: str, old: File | None, new: File | None) -> Iterator[str]:
    names = (f"a/{path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null")
    texts = [_lines(file) for file in (old, new)]
    if any(text is None for text in texts):
        yield f"Binary files {names[0]} and {names[1]} differ\n"
        return
    if old and new and old.executable != new.executable:
        yield f"{path}: {'now' if new.executable else 'no longer'} executable\n"
    for line in difflib.unified_diff(texts[0] or [], texts[1] or [], *names):
        yield line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def _lines(file: File | None) -> list[str] | None:
    """Lines of a text file with their ends, none of a missing file, None of one that is no text."""
    if file is None:
        return []
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else [line + end for line, end in _split(text)]


def _split(text: str) -> Iterator[tuple[str, str]]:
    """By line feeds alone: other separators of `str.splitlines` are part of a line."""
    *whole, last = text.split("\n")
    yield from ((line, "\n") for line in whole)
    if last:
        yield last, ""
