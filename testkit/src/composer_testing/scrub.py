"""What a workspace may hold besides its files that tells how a task is solved: `leaks(tree)`.

A repository's history knows the repair that was made later, and so do caches, build folders and bytecode of a checkout
that once stood at another commit. A task set that makes workspaces of repositories leaves all of it out: no `.git` at
all, or one fresh commit and nothing beside it, as `composer_envkit.packed` makes it.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

from composer_core.trees import File, Tree

LEFTOVERS = {
    "bytecode": ("*.pyc", "*.pyo", "*/__pycache__/*", "__pycache__/*", "*.class"),
    "a cache": (
        "*.pytest_cache/*",
        "*.mypy_cache/*",
        "*.ruff_cache/*",
        "*.hypothesis/*",
        "*.tox/*",
        "*.nox/*",
        "*.cache/*",
    ),
    "an installed package": ("*site-packages/*", "*.egg-info/*", "*.dist-info/*", "*.egg", "*.whl"),
    "a record of a run": ("*.coverage", "*.coverage.*", "*junit*.xml", "*.lastfailed"),
    "an edit that was left": ("*.orig", "*.rej", "*.swp", "*~", "*.bak", "*.patch", "*.diff"),
    "another history": (".hg/*", ".svn/*", ".jj/*", ".bzr/*", "*/.git/*", "*/.git"),
}
"""What it is -> patterns of paths."""
FRESH = ("HEAD", "config", "description", "index", "COMMIT_EDITMSG", "info/exclude", "refs/heads/*", "objects/??/*")
"""Below `.git`: what one fresh commit takes. Anything else (packs, reflogs, tags, hooks) may hold another time."""


def leaks(tree: Tree) -> list[str]:
    """Sentences about what should not be there; none for a workspace that tells nothing."""
    found = [
        f"{file.path} is {what}"
        for file in tree.files
        for what, patterns in LEFTOVERS.items()
        if any(fnmatchcase(file.path, pattern) for pattern in patterns)
    ]
    inner = [file for file in tree.files if file.path.startswith(".git/")]
    return [*found, *_history(inner, {file.data for file in tree.files} - {file.data for file in inner})]


def _history(files: list[File], known: set[bytes]) -> Iterator[str]:
    """What a repository at the workspace's root tells beyond one commit of the files `known`."""
    names = {file.path.removeprefix(".git/"): file.data for file in files}
    for name, data in names.items():
        if not any(fnmatchcase(name, pattern) for pattern in FRESH):
            yield f".git/{name} is no part of a fresh commit"
        if name == "config" and b"[remote" in data:
            yield ".git/config names a remote"
    heads = [name for name in names if name.startswith("refs/heads/")]
    if len(heads) > 1:
        yield f"there are {len(heads)} branches: {', '.join(heads)}"
    kinds: Counter[str] = Counter()
    for name in (name for name in names if name.startswith("objects/")):
        kind, data = _object(names[name])
        kinds[kind] += 1
        if kind not in ("commit", "tree") and data not in known:
            yield f".git/{name} holds what is in no file of the workspace"
    if kinds["commit"] > 1:
        yield f"there are {kinds['commit']} commits"


def _object(data: bytes) -> tuple[str, bytes]:
    """Kind and content of a loose object; no kind and all of it if it is none."""
    try:
        head, _, body = zlib.decompress(data).partition(b"\0")
    except zlib.error:
        return "", data
    return head.partition(b" ")[0].decode(errors="replace"), body
