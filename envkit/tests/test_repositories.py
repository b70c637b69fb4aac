"""A repository becomes a workspace that tells nothing of another time, and that git takes for one of its own."""

from __future__ import annotations

import os
import subprocess
import zlib
from pathlib import Path

import pytest

from composer_core.errors import ConfigError
from composer_core.trees import File, Tree
from composer_envkit import committed, lay, packed
from composer_testing.scrub import leaks

ANSWER = b"forty-two"
RIGHT = f"x = {ANSWER.decode()!r}\n"
SOMEBODY = "Ada Somebody"
CLEAN = {"PATH": os.environ["PATH"], "HOME": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}


def git(folder, *words, stdin=b""):
    named = ["-c", f"user.name={SOMEBODY}", "-c", "user.email=ada@example.invalid", "-c", "gc.auto=0"]
    allowed = ["-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *named, *allowed, *words], cwd=folder, env=CLEAN, input=stdin, capture_output=True, check=False
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.decode().strip()


def write(folder, path, text):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def commit(folder, message):
    git(folder, "add", "--all")
    git(folder, "commit", "--message", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path):
    """At a bug, with its repair in every place where a repository may keep it."""
    other, home = tmp_path / "other", tmp_path / "home"
    for folder in (other, home):
        folder.mkdir()
        git(folder, "init")
    write(other, "answer.py", RIGHT)
    commit(other, "of another repository")
    write(home, "calc.py", "x = 'wrong'\n")
    write(home, "pkg/deep/ünï code.py", "")
    write(home, "run", "#!/bin/sh\n")
    (home / "run").chmod(0o755)
    (home / "link").symlink_to("calc.py")
    write(home, ".gitignore", "build/\n*.pyc\n")
    write(home, ".gitattributes", "calc.py filter=repair ident export-ignore\n")
    git(home, "submodule", "add", "../other", "module")
    bug = commit(home, "the bug")
    wrong = git(home, "rev-parse", "HEAD:calc.py")
    git(home, "switch", "--create", "fixed")
    write(home, "calc.py", RIGHT)
    commit(home, f"the repair: {ANSWER.decode()}")
    git(home, "tag", "--annotate", "--message", RIGHT, "v2")
    git(home, "worktree", "add", "--detach", str(tmp_path / "worktree"), "v2")
    git(home, "remote", "add", "origin", str(other))
    git(home, "fetch", "origin")
    git(home, "notes", "add", "--message", RIGHT, bug)
    git(home, "switch", "main")
    write(home, "calc.py", RIGHT)
    git(home, "stash")
    git(home, "merge", "--no-edit", "fixed")
    git(home, "repack", "-a", "-d")
    git(home, "reset", "--hard", bug)
    git(home, "hash-object", "-w", "--stdin", stdin=b"dangling: " + ANSWER)
    git(home, "replace", wrong, git(home, "hash-object", "-w", "--stdin", stdin=RIGHT.encode()))
    write(home, ".git/objects/info/alternates", f"{other}/.git/objects\n")
    write(home, ".git/hooks/post-checkout", f"#!/bin/sh\necho {ANSWER.decode()} > calc.py\n")
    write(home, ".git/info/exclude", f"# {ANSWER.decode()}\ndist/\n")
    git(home, "config", "filter.repair.smudge", f"echo {ANSWER.decode()}; cat")
    git(home, "config", "include.path", str(other / ".git/config"))
    for path in (
        "build/lib/calc.py",
        "dist/calc.whl",
        "__pycache__/calc.cpython-311.pyc",
        ".pytest_cache/v",
        "calc.py~",
    ):
        write(home, path, RIGHT)
    write(home, "staged.py", RIGHT)
    git(home, "add", "staged.py")
    return home


def everything(folder: Path) -> dict[str, bytes]:
    """Path -> bytes of each file, and all objects of its repository, as git reads them."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found["all objects"] = subprocess.run(
        ["git", "cat-file", "--batch-all-objects", "--batch"], cwd=folder, env=CLEAN, capture_output=True, check=True
    ).stdout
    return found


def test_the_answer_is_nowhere_in_what_is_packed_and_nobody_is_named(repository, tmp_path):
    before = everything(repository)
    told = {path.removeprefix(".git/") for path, data in before.items() if ANSWER in data + path.encode()}
    hidden = {"all objects", "logs/HEAD", "logs/refs/heads/fixed", "hooks/post-checkout", "config", "staged.py"}
    assert told >= hidden | {"build/lib/calc.py", "dist/calc.whl", "calc.py~", "info/exclude"}, (
        "there is something to find"
    )

    tree = packed(repository)
    lay(tree, tmp_path / "laid")
    for path, data in everything(tmp_path / "laid").items():
        plain = zlib.decompress(data) if "/objects/" in path else data
        for secret in (ANSWER, SOMEBODY.encode(), str(tmp_path).encode()):
            assert secret not in data + plain + path.encode(), path
    assert leaks(tree) == []
    files = {file.path: (file.data, file.executable) for file in tree.files if not file.path.startswith(".git/")}
    assert files == {
        ".gitattributes": (b"calc.py filter=repair ident export-ignore\n", False),
        ".gitignore": (b"build/\n*.pyc\n", False),
        ".gitmodules": ((repository / ".gitmodules").read_bytes(), False),
        "calc.py": (b"x = 'wrong'\n", False),
        "pkg/deep/ünï code.py": (b"", False),
        "run": (b"#!/bin/sh\n", True),
    }


def test_git_finds_one_commit_and_nothing_else(repository, tmp_path):
    laid = tmp_path / "laid"
    lay(packed(repository), laid)
    assert git(laid, "fsck", "--strict", "--full", "--no-reflogs", "--unreachable") == ""
    assert git(laid, "status", "--porcelain", "--ignored") == ""
    assert len(git(laid, "log", "--all", "--reflog", "--format=%H").split()) == 1
    assert git(laid, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert git(laid, "count-objects", "-v").split()[:2] == ["count:", "10"], "six files, three folders, a commit"
    for empty in (["reflog"], ["stash", "list"], ["remote"], ["notes", "list"], ["tag"], ["replace"]):
        assert git(laid, *empty) == "", empty
    assert len(git(laid, "worktree", "list").splitlines()) == 1


def test_an_agent_can_work_with_it(repository, tmp_path):
    laid = tmp_path / "laid"
    lay(packed(repository), laid)
    write(laid, "calc.py", "x = 'tried'\n")
    (laid / "run").unlink()
    assert git(laid, "status", "--porcelain").splitlines() == ["M calc.py", " D run"]
    assert "-x = 'wrong'\n+x = 'tried'" in git(laid, "diff")
    git(laid, "stash")
    assert (laid / "calc.py").read_text() == "x = 'wrong'\n"
    git(laid, "stash", "pop")
    subprocess.run(["git", "commit", "--all", "-m", "tried"], cwd=laid, env=CLEAN, check=True, capture_output=True)
    assert git(laid, "log", "--format=%an %ae") == "agent agent@localhost\ntask task@localhost"


def test_trees_are_gits_own(tmp_path):
    """Names that sort as folders do, a large file, an empty one, programs, long and odd names."""
    files = {"a.b/x": b"1", "a/x": b"", "a-b": b"2", "a0": b"3" * 200_000, "d/e/f": b"4", "ž/\n": b"5", "n" * 250: b"6"}
    tree = Tree(tuple(File(path, data, path == "a/x") for path, data in files.items()))
    lay(committed(tree), tmp_path / "ours")
    lay(tree, tmp_path / "theirs")
    git(tmp_path / "theirs", "init")
    commit(tmp_path / "theirs", "all")
    assert git(tmp_path / "ours", "rev-parse", "HEAD^{tree}") == git(tmp_path / "theirs", "rev-parse", "HEAD^{tree}")
    assert git(tmp_path / "ours", "ls-files", "--stage", "-z") == git(tmp_path / "theirs", "ls-files", "--stage", "-z")


def test_the_same_files_are_the_same_bytes_whatever_came_before(repository):
    tree = packed(repository)
    assert packed(repository, "main") == tree == committed(tree)
    assert packed(repository, "v2") != tree
    ours = [file for file in tree.files if not file.path.startswith(".git/")]
    assert committed(Tree((*ours, File("deep/.GIT/config", ANSWER), File("sub/.git", ANSWER)))) == tree
    known = "cc7b29974ad65a2676ecbd1e2e0402f9d7c85f99a9c38120efd5c50cdeb67565"
    assert committed(Tree.of({"a": "b"})).ref.sha256 == known, "whatever the machine, its git and its zlib"


def test_what_cannot_be_packed_is_said(repository, tmp_path):
    (repository / "plain").mkdir()
    wrong = {
        "cannot read": (tmp_path, "HEAD"),
        "cannot be run": (tmp_path / "missing", "HEAD"),
        "not a git repository": (repository / "plain", "HEAD"),
        "Not a valid object name": (repository, "no-such-branch"),
        "can be named so": (repository, "--help"),
    }
    for said, (folder, name) in wrong.items():
        with pytest.raises(ConfigError, match=said):
            packed(folder, name)
    odd = os.fsdecode(b"odd\xff")
    (repository / odd).write_text("")
    commit(repository, "a name that is no text")
    with pytest.raises(ConfigError, match="no text"):
        packed(repository)
