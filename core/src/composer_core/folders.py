"""Folders of this machine as trees, and patches laid over them: what `composer-run agent` works on.

The policy's patch is hostile until a person has accepted it, and even then it may not reach outside the folder: links
are no part of a tree and are never written through, and what `SKIPPED` names is neither read nor written, so a patch
cannot plant a git hook.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from composer_core.errors import ConfigError
from composer_core.trees import File, Patch, Tree

SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"})
"""Names that are neither shown to the policy nor ever written, at any depth."""


def read_folder(folder: Path, file_bytes: int, disk_bytes: int) -> Tree:
    """Every regular file below `folder`, links and `SKIPPED` names left out.

    Raises:
        ConfigError: no folder, or larger than a sandbox's limits (bytes of the largest file, bytes in all).
    """
    if not folder.is_dir():
        raise ConfigError("there is no such folder", where=str(folder))
    files, total = [], 0
    for path in _regular(folder):
        size = path.stat().st_size
        total += size
        if size > file_bytes or total > disk_bytes:
            raise ConfigError(
                "the folder is larger than a sandbox of this run may be",
                where=str(path),
                expected=f"files up to {file_bytes:,} bytes, {disk_bytes:,} in all",
                fix="--set sandbox_limits.file_bytes=... or sandbox_limits.disk_bytes=..., or name a smaller folder",
            )
        files.append(File(path.relative_to(folder).as_posix(), path.read_bytes(), os.access(path, os.X_OK)))
    return Tree(tuple(files))


def _regular(folder: Path) -> Iterator[Path]:
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in SKIPPED)
        for name in sorted(files):
            path = Path(parent, name)
            if name not in SKIPPED and path.is_file() and not path.is_symlink():
                yield path


def apply_to_folder(folder: Path, before: Tree, patch: Patch) -> None:
    """Lay an accepted patch over the folder it was made for; all of it or nothing.

    Raises:
        ConfigError: a file has changed since `before` was read, or a path leads through a link or a skipped name.
    """
    wrong = [path for path in patch.touched() if _in_the_way(folder, path, before)]
    if wrong:
        raise ConfigError(
            "the patch cannot be laid over the folder; nothing was written",
            where=str(folder),
            expected="files as they were when the agent started, no links, nothing in " + ", ".join(sorted(SKIPPED)),
            found=", ".join(wrong),
        )
    for path in patch.deletes:
        (folder / path).unlink()
    for file in patch.writes:
        _write(folder / file.path, file)


def _in_the_way(folder: Path, path: str, before: Tree) -> bool:
    """Whether something stands at `path` that the agent did not see, or the way to it is not inside the folder."""
    parts = path.split("/")
    if SKIPPED & set(parts):
        return True
    parents = [folder.joinpath(*parts[:end]) for end in range(1, len(parts))]
    if any(parent.is_symlink() or (parent.exists() and not parent.is_dir()) for parent in parents):
        return True
    target, known = folder / path, before.find(path)
    if known is None:
        return target.is_symlink() or target.exists()
    return target.is_symlink() or not target.is_file() or target.read_bytes() != known.data


def _write(target: Path, file: File) -> None:
    """Replace one file by a rename, keeping the mode of what was there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(file.data)
    part.chmod(mode | 0o111 if file.executable else mode & ~0o111)
    part.replace(target)
