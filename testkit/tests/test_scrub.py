"""What tells a task's answer is found in a workspace, and a clean one is let through."""

import subprocess

import pytest

from composer_core.trees import File, Tree
from composer_envkit import packed
from composer_testing.scrub import leaks


def tree_of(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return Tree(tuple(File(path.relative_to(folder).as_posix(), path.read_bytes()) for path in files))


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "gc.auto=0"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """One fresh commit, with what git itself writes beside it taken away."""
    (tmp_path / "a.py").write_text("x = 1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "all")
    subprocess.run(["rm", "-rf", ".git/logs", ".git/hooks"], cwd=tmp_path, check=True)
    return tmp_path


def test_one_fresh_commit_and_plain_files_tell_nothing(repository):
    assert leaks(tree_of(repository)) == []
    assert leaks(Tree.of({"a.py": "", "tests/test_a.py": "", "build.py": "", "docs/caches.md": ""})) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["commit", "--allow-empty", "-m", "the fix"], "2 commits"),
        (["tag", "v2"], "refs/tags/v2"),
        (["branch", "fixed"], "2 branches"),
        (["remote", "add", "origin", "https://example.invalid/x"], "names a remote"),
        (["gc"], "objects/pack/"),
        (["update-ref", "refs/stash", "HEAD"], "refs/stash"),
        (["update-ref", "ORIG_HEAD", "HEAD"], "ORIG_HEAD"),
        (["update-ref", "refs/notes/commits", "HEAD"], "refs/notes/commits"),
        (["tag", "-a", "-m", "the fix", "v2"], "holds what is in no file"),
    ],
)
def test_a_history_that_goes_on_is_told(repository, words, told):
    git(repository, *words)
    assert told in "; ".join(leaks(tree_of(repository)))


def test_what_no_commit_holds_any_more_is_told_and_what_a_file_holds_is_not(repository):
    for text, told in (("the fix", ["holds what is in no file of the workspace"]), ("x = 1\n", [])):
        before = leaks(tree_of(repository))
        (repository / "dangling").write_text(text)
        git(repository, "hash-object", "-w", "dangling")
        (repository / "dangling").unlink()
        new = [one for one in leaks(tree_of(repository)) if one not in before]
        assert [one.partition(" ")[2] for one in new] == told
    (repository / ".git/objects/00").mkdir(exist_ok=True)
    (repository / ".git/objects/00/11").write_bytes(b"the fix, not even packed")
    assert any(one.startswith(".git/objects/00/11 ") for one in leaks(tree_of(repository)))


def test_a_repository_as_envkit_makes_it_tells_nothing(repository):
    git(repository, "commit", "--allow-empty", "-m", "the fix")
    (repository / "a.pyc").write_bytes(b"the fix")
    assert leaks(packed(repository)) == []


@pytest.mark.parametrize(
    "name", ["hooks/pre-commit", "objects/info/alternates", "worktrees/fix/HEAD", "modules/a/HEAD"]
)
def test_what_lies_beside_a_commit_is_told(repository, name):
    (repository / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
    (repository / ".git" / name).write_text("the fix")
    assert [one for one in leaks(tree_of(repository)) if one.startswith(f".git/{name} ")]


def test_a_reflog_is_told(repository):
    (repository / ".git/logs").mkdir()
    (repository / ".git/logs/HEAD").write_text("0 1 the fix\n")
    assert "logs/HEAD" in leaks(tree_of(repository))[0]


@pytest.mark.parametrize(
    "path",
    [
        "a/__pycache__/b.cpython-311.pyc",
        ".pytest_cache/v/x",
        "x.orig",
        "lib/site-packages/a.py",
        "sub/.git/HEAD",
        "fix.patch",
    ],
)
def test_leftovers_are_told_by_what_they_are(path):
    assert leaks(Tree.of({path: "x"}))[0].startswith(f"{path} is ")
