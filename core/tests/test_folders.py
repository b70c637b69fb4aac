"""Folders of this machine: what is read of them, and that a patch writes nothing outside or unseen."""

import os

import pytest

from composer_core.errors import ConfigError
from composer_core.folders import acceptable, apply_to_folder, read_folder
from composer_core.trees import File, Patch

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
    ["link/target", "link/new", "file-link", ".git/hooks/pre-commit", ".GIT/hooks/x", "run.sh/x", "pkg", "x" * 300],
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


def test_names_that_are_never_written_are_taken_out_of_a_patch_before_it_is_shown():
    patch = Patch((File("a.py", b""), File("pkg/__pycache__/a.pyc", b""), File(".Git/config", b"")), ("x/.hg/y",))
    assert acceptable(patch) == Patch((File("a.py", b""),), (), (".Git/config", "pkg/__pycache__/a.pyc", "x/.hg/y"))


def test_a_link_planted_where_a_file_is_prepared_is_not_followed(folder, tmp_path):
    (folder / ".run.sh.part").symlink_to(tmp_path / "outside/target")
    before = read_folder(folder, *ROOM)
    apply_to_folder(folder, before, Patch((File("run.sh", b"new"),)))
    assert (tmp_path / "outside/target").read_text() == "untouched"
    assert (folder / "run.sh").read_bytes() == b"new" and not (folder / "run.sh").is_symlink()


def test_a_file_system_that_refuses_midway_leaves_everything_as_it_was(folder, monkeypatch):
    before = read_folder(folder, *ROOM)
    patch = Patch((File("new/deep/b.py", b"b"), File("run.sh", b"changed"), File("z.py", b"z")), ("pkg/a.py",))
    replace = os.replace

    def full(source, target, **rest):
        if str(target).endswith("z.py"):
            raise OSError(28, "No space left on device")
        replace(source, target, **rest)

    monkeypatch.setattr("pathlib.os.replace", full)
    with pytest.raises(ConfigError, match="No space left"):
        apply_to_folder(folder, before, patch)
    monkeypatch.undo()
    assert read_folder(folder, *ROOM) == before
    assert not (folder / "new").exists()
    assert not [name for _, _, names in os.walk(folder) for name in names if name.startswith(".composer-")]


def test_files_that_cannot_be_read_or_named_are_said_by_name(folder):
    odd = os.path.join(os.fsencode(folder), b"odd-\xff")
    with open(odd, "wb"):
        pass
    with pytest.raises(ConfigError, match="odd-"):
        read_folder(folder, *ROOM)
