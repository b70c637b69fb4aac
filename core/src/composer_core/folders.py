"""Folders of this machine as trees, and patches laid over them: what `composer-run agent` works on.

The policy's patch is hostile until a person has accepted it, and even then it may not reach outside the folder: links
are no part of a tree and are never written through, and what `SKIPPED` names is neither read nor written, so a patch
cannot plant a git hook.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from attrs import evolve

from composer_core.errors import ConfigError
from composer_core.trees import File, Patch, Tree

CACHES = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"})
SKIPPED = CACHES | {".git", ".hg", ".svn", ".venv", "node_modules"}
"""Names that are neither shown to the policy nor ever written, at any depth and in any case."""


def skipped(path: str) -> bool:
    return any(part.casefold() in SKIPPED for part in path.split("/"))


def read_folder(folder: Path, file_bytes: int, disk_bytes: int) -> Tree:
    """Every regular file below `folder`, links and `SKIPPED` names left out.

    Raises:
        ConfigError: no folder, larger than a sandbox's limits (bytes of the largest file, bytes in all), or a file
            that cannot be read or has a name that is no text.
    """
    if not folder.is_dir():
        raise ConfigError("there is no such folder", where=str(folder))
    files, total = [], 0
    for path in _regular(folder):
        name = path.relative_to(folder).as_posix()
        try:
            name.encode()
            data = path.read_bytes() if path.stat().st_size <= file_bytes else bytes(file_bytes + 1)
        except (OSError, UnicodeEncodeError) as error:
            fix = "make it readable, rename it, or name another folder"
            raise ConfigError("a file cannot be read", where=ascii(str(path)), found=str(error), fix=fix) from error
        total += len(data)
        if len(data) > file_bytes or total > disk_bytes:
            raise ConfigError(
                "the folder is larger than a sandbox of this run may be",
                where=str(path),
                expected=f"files up to {file_bytes:,} bytes, {disk_bytes:,} in all",
                fix="--set sandbox_limits.file_bytes=... or sandbox_limits.disk_bytes=..., or name a smaller folder",
            )
        files.append(File(name, data, os.access(path, os.X_OK)))
    return Tree(tuple(files))


def _regular(folder: Path) -> Iterator[Path]:
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not skipped(name))
        for name in sorted(files):
            path = Path(parent, name)
            if not skipped(name) and path.is_file() and not path.is_symlink():
                yield path


def acceptable(patch: Patch) -> Patch:
    """The part that may be laid down at all; paths with `SKIPPED` names move to the patch's `skipped`."""
    kept = patch.only(lambda path: not skipped(path))
    return evolve(kept, skipped=(*kept.skipped, *filter(skipped, patch.touched())))


def apply_to_folder(folder: Path, before: Tree, patch: Patch) -> None:
    """Lay an accepted patch over the folder it was made for; all of it or nothing.

    Everything is written beside its place first. Then it is moved there; should that fail midway, what was moved is
    put back as `before` has it.

    Raises:
        ConfigError: a file has changed since `before` was read, a path leads through a link or a skipped name, or
            the file system refuses.
    """
    wrong = [path for path in patch.touched() if _in_the_way(folder, path, before)]
    if wrong:
        raise _refused(folder, ", ".join(map(ascii, wrong)))
    parts: dict[str, Path] = {}
    made: list[Path] = []
    done: list[str] = []
    try:
        for file in patch.writes:
            made += _make_parents(folder, file.path)
            parts[file.path] = _written_beside(folder / file.path, file)
        for path in patch.touched():
            done.append(path)
            if path in parts:
                parts[path].replace(folder / path)
            else:
                (folder / path).unlink()
    except OSError as error:
        for path in done:
            _put_back(folder / path, before.find(path))
        for part in parts.values():
            part.unlink(missing_ok=True)
        for parent in reversed(made):
            with suppress(OSError):
                parent.rmdir()
        raise _refused(folder, str(error)) from error


def _refused(folder: Path, found: str) -> ConfigError:
    return ConfigError(
        "the patch cannot be laid over the folder; nothing was written",
        where=str(folder),
        expected="files as they were when the agent started, no links, nothing in " + ", ".join(sorted(SKIPPED)),
        found=found,
    )


def _in_the_way(folder: Path, path: str, before: Tree) -> bool:
    """Whether something stands at `path` that the agent did not see, or the way to it is not inside the folder."""
    parts = path.split("/")
    if skipped(path):
        return True
    try:
        parents = [folder.joinpath(*parts[:end]) for end in range(1, len(parts))]
        if any(parent.is_symlink() or (parent.exists() and not parent.is_dir()) for parent in parents):
            return True
        target, known = folder / path, before.find(path)
        if known is None:
            return target.is_symlink() or target.exists()
        return target.is_symlink() or not target.is_file() or target.read_bytes() != known.data
    except (OSError, ValueError):
        return True


def _make_parents(folder: Path, path: str) -> list[Path]:
    """Create the folders that lead to `path`; returns those that were missing, outermost first."""
    parents = [folder.joinpath(*path.split("/")[:end]) for end in range(1, path.count("/") + 1)]
    missing = [parent for parent in parents if not parent.exists()]
    for parent in missing:
        parent.mkdir()
    return missing


def _written_beside(target: Path, file: File) -> Path:
    """A new file of a name nobody can have planted, with the mode of what it will replace."""
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    number, name = tempfile.mkstemp(prefix=".composer-", dir=target.parent)
    with os.fdopen(number, "wb") as part:
        part.write(file.data)
    os.chmod(name, mode | 0o111 if file.executable else mode & ~0o111)
    return Path(name)


def _put_back(target: Path, known: File | None) -> None:
    with suppress(OSError):
        if known is None:
            target.unlink(missing_ok=True)
        else:
            _written_beside(target, known).replace(target)
