"""What a workspace may hold besides its files that tells how a task is solved: `leaks(tree)`.

A repository's history knows the repair that was made later, and so do caches, build folders and bytecode of a checkout
that once stood at another commit. A task set that makes workspaces of repositories leaves all of it out: no `.git` at
all, or one fresh commit (`git init`, add, commit) and nothing beside it.
"""

from __future__ import annotations

import zlib
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
PAST = (
    *("logs/*", "packed-refs", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "objects/pack/*", "objects/info/alternates"),
    *("refs/stash", "refs/remotes/*", "refs/tags/*", "worktrees/*", "modules/*", "lost-found/*", "index.lock"),
)
"""Below `.git`: what names or holds more than one fresh commit."""


def leaks(tree: Tree) -> list[str]:
    """Sentences about what should not be there; none for a workspace that tells nothing."""
    found = [
        f"{file.path} is {what}"
        for file in tree.files
        for what, patterns in LEFTOVERS.items()
        if any(fnmatchcase(file.path, pattern) for pattern in patterns)
    ]
    return [*found, *_history([file for file in tree.files if file.path.startswith(".git/")])]


def _history(files: list[File]) -> Iterator[str]:
    """What a repository at the workspace's root tells beyond one commit."""
    names = {file.path.removeprefix(".git/"): file.data for file in files}
    for name, data in names.items():
        if any(fnmatchcase(name, pattern) for pattern in PAST):
            yield f".git/{name} names or holds another time"
        if name == "config" and b"[remote" in data:
            yield ".git/config names a remote"
    heads = [name for name in names if name.startswith("refs/heads/")]
    if len(heads) > 1:
        yield f"there are {len(heads)} branches: {', '.join(heads)}"
    commits = [name for name, data in names.items() if name.startswith("objects/") and _is_commit(data)]
    if len(commits) > 1:
        yield f"there are {len(commits)} commits"


def _is_commit(data: bytes) -> bool:
    try:
        return zlib.decompressobj().decompress(data, 64).startswith(b"commit ")
    except zlib.error:
        return False
