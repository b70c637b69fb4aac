"""What a sandbox changed against its template: read from its upper layers, then compared with the template's files.

The layers only name candidates; the merged folder says what is there now. A whiteout, an opaque folder, or a file in
place of a folder makes every template file below it a candidate.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from composer_envkit.agent import files, linux
from composer_plugin_local.keeper.copying import touched
from composer_plugin_local.keeper.sandboxes import Sandbox


def changes(sandbox: Sandbox, limit_bytes: int) -> tuple[list[tuple[str, bytes, bool]], list[str], list[str]]:
    """(writes, deletes, skipped); what is skipped is larger than the limit, no regular file, or a folder too deep."""
    template = sandbox.state.template
    pristine = os.open(template.folder, os.O_PATH | os.O_DIRECTORY)
    writes: list[tuple[str, bytes, bool]] = []
    deletes: list[str] = []
    skipped: list[str] = []
    try:
        candidates, deep = _candidates(sandbox)
        skipped += [files.shown(path) for path in sorted(deep)]
        for path in sorted(candidates):
            kind, found = _now(sandbox.fd, path, limit_bytes)
            known = path in template.executable
            if kind == "file" and not (known and found == _before(pristine, path, template.executable[path])):
                writes.append((path, *found))
            if kind in ("other", "large"):
                skipped.append(files.shown(path))
            if known and kind in ("missing", "other"):
                deletes.append(path)
    finally:
        os.close(pristine)
    return writes, deletes, skipped


def _candidates(sandbox: Sandbox) -> tuple[set[str], set[str]]:
    """Paths to look at, and folders that were not looked into."""
    paths: set[str] = set()
    covered: set[str] = set()
    deep: set[str] = set()
    for folder in sandbox.uppers:
        for path, what in touched(folder):
            if what == "deep":
                deep.add(path)
                continue
            if what in ("file", "other"):
                paths.add(path)
            covered.add(path)
    known = sandbox.state.template.executable
    paths.update(path for path in known if path in covered or any(_above(path, covered)))
    return paths, deep


def _above(path: str, covered: set[str]) -> Any:
    parts = path.split("/")
    return ("/".join(parts[:end]) in covered for end in range(1, len(parts)))


def _now(folder: int, path: str, limit: int) -> tuple[str, tuple[bytes, bool]]:
    nothing = (b"", False)
    try:
        fd = linux.open_beneath(folder, path, os.O_PATH | os.O_NOFOLLOW, links=False)
    except OSError:
        return ("other" if _is_link(folder, path) else "missing"), nothing
    info = os.fstat(fd)
    os.close(fd)
    if stat.S_ISDIR(info.st_mode):
        return "missing", nothing
    if not stat.S_ISREG(info.st_mode) or not files.is_text(path):
        return "other", nothing
    try:
        data, info = files.read(folder, path, limit, links=False)
    except files.Refused as error:
        return ("large" if error.kind == "quota" else "missing"), nothing
    return "file", (data, bool(info.st_mode & 0o100))


def _is_link(folder: int, path: str) -> bool:
    parent, _, name = path.rpartition("/")
    try:
        fd = linux.open_beneath(folder, parent or ".", os.O_PATH | os.O_DIRECTORY, links=False)
    except OSError:
        return False
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except OSError:
        return False
    finally:
        os.close(fd)


def _before(pristine: int, path: str, executable: bool) -> tuple[bytes, bool]:
    data, _ = files.read(pristine, path, 1 << 30)
    return data, executable
