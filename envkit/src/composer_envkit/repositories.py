"""Repositories as workspaces: the files of one commit, and a repository that has just these and no other time.

A repository knows how its bugs were repaired: in later commits, branches, tags, stashes, notes and remotes, in what
reflog and packs still hold, in caches and build folders beside it. So nothing of `.git` is taken over, and only what a
commit holds. What agents expect of a repository (`git status`, `git diff`, `git commit`) works against the new one.

It is written here and not by git: a workspace is named by its bytes, and all nodes of a run have to come to the same
ones, whatever their git, zlib and settings. Source: Documentation/gitformat-index.txt and "Git Objects" of Pro Git.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from composer_core.errors import ConfigError
from composer_core.trees import File, Tree

GIT = ".git"
WHO = b"task <task@localhost> 946684800 +0000"
"""Author and committer, at the turn of the year 2000."""
HEAD = "ref: refs/heads/main\n"
CONFIG = """\
[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
[user]
	name = agent
	email = agent@localhost
"""
FILE, PROGRAM, FOLDER = 0o100644, 0o100755, 0o040000
STORED_BYTES = 65_535
"""Most bytes of a stored block (RFC 1951, 3.2.4)."""
PADDED = 8
NAME_MOST = 0xFFF


def packed(repository: Path, commit: str = "HEAD") -> Tree:
    """The files of a commit as a workspace with a repository of its own (`committed`).

    What the folder holds beside them (untracked and ignored files) is left out, as are links and submodules, which a
    tree cannot hold. Bytes are those of the commit: no filter, attribute or setting of the repository has a say.

    Raises:
        ConfigError: there is no such repository or commit, no git, or a file's name is no text.
    """
    if commit.startswith("-"):
        raise ConfigError("no commit can be named so", found=commit)
    listed = _git(repository, "ls-tree", "-r", "-z", "--full-tree", commit)
    rows = [row.partition(b"\t")[::2] for row in listed.split(b"\0") if row]
    found = [(*about.split(), path) for about, path in rows if about.startswith(b"100")]
    try:
        paths = [path.decode() for *_, path in found]
    except UnicodeDecodeError as error:
        raise ConfigError("a file's name is no text", where=str(repository), found=ascii(error.object)) from error
    blobs = _blobs(repository, [name for _, _, name, _ in found])
    modes = [int(mode, 8) & 0o100 != 0 for mode, *_ in found]
    return committed(Tree(tuple(map(File, paths, blobs, modes))))


def committed(tree: Tree) -> Tree:
    """The tree with a repository at its root whose only commit holds its files; no history, hook, remote or reflog.

    What lies in a folder or file named `.git` is left out, at any depth and in any case.
    """
    files = [file for file in tree.files if GIT not in file.path.casefold().split("/")]
    made = {"HEAD": HEAD.encode(), "config": CONFIG.encode()}
    blobs = {file.path: _put(made, b"blob", file.data) for file in files}
    root = _put_folder(made, [(file.path.split("/"), _mode(file), blobs[file.path]) for file in files])
    text = b"tree %s\nauthor %s\ncommitter %s\n\nAll files\n" % (root.hex().encode(), WHO, WHO)
    made["refs/heads/main"] = _put(made, b"commit", text).hex().encode() + b"\n"
    made["index"] = _index((file.path.encode(), _mode(file), blobs[file.path]) for file in files)
    return Tree((*files, *(File(f"{GIT}/{path}", data) for path, data in made.items())))


def _mode(file: File) -> int:
    return PROGRAM if file.executable else FILE


def _put(made: dict[str, bytes], kind: bytes, data: bytes) -> bytes:
    """Add an object; its name as 20 bytes."""
    whole = b"%s %d\0%s" % (kind, len(data), data)
    name = hashlib.sha1(whole, usedforsecurity=False)
    made[f"objects/{name.hexdigest()[:2]}/{name.hexdigest()[2:]}"] = _stored(whole)
    return name.digest()


def _stored(data: bytes) -> bytes:
    """A zlib stream of stored blocks, which looks the same whoever writes it."""
    blocks = [data[at : at + STORED_BYTES] for at in range(0, len(data), STORED_BYTES)]
    heads = [struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF) for block in blocks]
    heads[-1] = b"\x01" + heads[-1][1:]
    body = b"".join(head + block for head, block in zip(heads, blocks, strict=True))
    return b"\x78\x01" + body + struct.pack(">I", zlib.adler32(data))


def _put_folder(made: dict[str, bytes], entries: Iterable[tuple[list[str], int, bytes]]) -> bytes:
    """Add the tree object of a folder, given what lies below it as (names, mode, object), and those of its folders."""
    rows: dict[bytes, tuple[int, bytes]] = {}
    below: dict[str, list[tuple[list[str], int, bytes]]] = {}
    for (name, *rest), mode, blob in entries:
        if rest:
            below.setdefault(name, []).append((rest, mode, blob))
        else:
            rows[name.encode()] = mode, blob
    rows.update({name.encode(): (FOLDER, _put_folder(made, inner)) for name, inner in below.items()})
    ordered = sorted(rows.items(), key=lambda row: row[0] + b"/" * (row[1][0] == FOLDER))
    return _put(made, b"tree", b"".join(b"%o %s\0%s" % (mode, name, blob) for name, (mode, blob) in ordered))


def _index(entries: Iterator[tuple[bytes, int, bytes]]) -> bytes:
    """What `git status` compares with, version 2. Times and sizes of files are 0, so that it looks at their bytes."""
    rows = sorted(entries)
    data = [b"DIRC" + struct.pack(">II", 2, len(rows))]
    for path, mode, blob in rows:
        row = struct.pack(">10I20sH", *([0] * 6), mode, 0, 0, 0, blob, min(len(path), NAME_MOST)) + path
        data.append(row + b"\0" * (PADDED - len(row) % PADDED))
    whole = b"".join(data)
    return whole + hashlib.sha1(whole, usedforsecurity=False).digest()


def _blobs(repository: Path, names: list[bytes]) -> Iterator[bytes]:
    said, at = _git(repository, "cat-file", "--batch", stdin=b"".join(name + b"\n" for name in names)), 0
    for _ in names:
        line = said.index(b"\n", at)
        size = int(said[at:line].split()[2])
        yield said[line + 1 : line + 1 + size]
        at = line + size + 2


def _git(repository: Path, *words: str, stdin: bytes = b"") -> bytes:
    """With nobody's settings, no object in the place of another (`git replace`), and in no repository further up."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_NO_REPLACE_OBJECTS": "1"}
    env["GIT_CEILING_DIRECTORIES"] = str(repository.resolve().parent)
    try:
        done = subprocess.run(["git", *words], cwd=repository, input=stdin, capture_output=True, check=False, env=env)
    except OSError as error:
        raise ConfigError("git cannot be run in the repository", where=str(repository), found=str(error)) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise ConfigError("git cannot read the repository", where=str(repository), found=said)
    return done.stdout
