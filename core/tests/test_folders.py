"""Folders of this machine: what is read of them, and that a patch writes nothing outside or unseen."""

import os

import pytest

from composer_core.errors import ConfigError
from composer_core.folders import apply_to_folder, read_folder
from composer_core.trees import File, Patch, Tree, unified

ROOM = (1 << 20, 1 << 22)


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "home"
    (home / "pkg").mkdir(parents=True)
    (home / ".git/hooks").mkdir(parents=True)
    (home / ".git/config").write_text("secret")
    (home / "pkg/a.py").write_text("x = 1\n")
    (home / "run.sh").write_text("true\n")
    (home / "run.sh").chmod(0o750)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/target").write_text("untouched")
    (home / "link").symlink_to(tmp_path / "outside", target_is_directory=True)
    (home / "file-link").symlink_to(tmp_path / "outside/target")
    return home


def test_regular_files_are_read_with_their_executable_bit(folder):
    tree = read_folder(folder, *ROOM)
    assert {file.path: file.executable for file in tree.files} == {"pkg/a.py": False, "run.sh": True}


def test_a_folder_that_no_sandbox_would_hold_is_refused(folder):
    for limits in ((3, 1 << 20), (1 << 20, 8)):
        with pytest.raises(ConfigError, match="larger than a sandbox"):
            read_folder(folder, *limits)
    with pytest.raises(ConfigError, match="no such folder"):
        read_folder(folder / "missing", *ROOM)


def test_an_accepted_patch_is_laid_down_and_modes_are_kept(folder):
    before = read_folder(folder, *ROOM)
    patch = Patch((File("run.sh", b"false\n", True), File("new/b.py", b"y = 2\n")), ("pkg/a.py",))
    apply_to_folder(folder, before, patch)
    assert read_folder(folder, *ROOM) == patch.apply(before)
    assert (folder / "run.sh").stat().st_mode & 0o777 == 0o751
    assert not [name for _, _, names in os.walk(folder) for name in names if name.endswith(".part")]


@pytest.mark.parametrize(
    "path",
    ["link/target", "link/new", "file-link", ".git/hooks/pre-commit", "pkg/__pycache__/a.pyc", "run.sh/x", "pkg"],
)
def test_a_patch_that_leads_elsewhere_writes_nothing_at_all(folder, tmp_path, path):
    before = read_folder(folder, *ROOM)
    patch = Patch((File("aaa.py", b"first in order"), File(path, b"evil")))
    with pytest.raises(ConfigError, match="nothing was written") as caught:
        apply_to_folder(folder, before, patch)
    assert path in str(caught.value)
    assert not (folder / "aaa.py").exists()
    assert os.listdir(tmp_path / "outside") == ["target"]
    assert (tmp_path / "outside/target").read_text() == "untouched"


@pytest.mark.parametrize("change", ["edited", "deleted", "created"])
def test_what_a_person_changed_meanwhile_is_kept(folder, change):
    before = read_folder(folder, *ROOM)
    patch = Patch((File("pkg/a.py", b"x = 2\n"), File("new.py", b"")))
    target = folder / ("new.py" if change == "created" else "pkg/a.py")
    if change == "deleted":
        target.unlink()
    else:
        target.write_text("mine\n")
    with pytest.raises(ConfigError, match=r"pkg/a\.py|new\.py"):
        apply_to_folder(folder, before, patch)
    assert change == "deleted" or target.read_text() == "mine\n"


def test_a_diff_shows_edits_new_files_deletions_and_no_binary():
    before = Tree.of({"a": "one\ntwo\n", "gone": "x\n", "bin": b"\0\1", "end": "no newline", "form": "a\x0cb\n"})
    patch = Patch(
        (
            File("a", b"one\n2\n"),
            File("bin", b"\0\2"),
            File("end", b"no newline!"),
            File("form", b"a\x0cc\n"),
            File("new", b"n\n"),
        ),
        ("gone",),
    )
    text = unified(before.files, patch)
    assert "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in text
    assert "Binary files a/bin and b/bin differ\n" in text
    assert "-no newline\n\\ No newline at end of file\n+no newline!\n" in text
    assert "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n" in text
    assert "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+n\n" in text
    assert "-a\x0cb\n+a\x0cc\n" in text
    assert unified(before.files, Patch()) == ""


def test_a_diff_applies_with_the_tool_everybody_has(tmp_path):
    import shutil
    import subprocess

    git = shutil.which("git")
    assert git
    before = Tree.of({"pkg/a.py": "".join(f"line {n}\n" for n in range(40)), "b": "no end"})
    patch = Patch((File("pkg/a.py", before.paths()["pkg/a.py"].data.replace(b"line 20", b"twenty")), File("b", b"B")))
    for file in before.files:
        (tmp_path / file.path).parent.mkdir(exist_ok=True)
        (tmp_path / file.path).write_bytes(file.data)
    text = unified(before.files, patch).encode()
    subprocess.run([git, "apply", "-p1", "-"], input=text, cwd=tmp_path, check=True)
    assert read_folder(tmp_path, *ROOM) == patch.apply(before)


def test_find_equals_a_lookup_by_name():
    tree = Tree.of({name: name for name in ("b", "a/x", "a.py", "a", "zz")})
    for path in [*tree.paths(), "", "c", "a/", "zzz"]:
        assert tree.find(path) == tree.paths().get(path)
