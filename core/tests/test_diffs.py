"""What a patch does, shown so that nothing of it is invisible, and taken by the tool everybody has."""

import subprocess

import pytest

from composer_core.diffs import compare, unified
from composer_core.folders import read_folder
from composer_core.trees import File, Patch, Tree

BEFORE = Tree(
    (
        File("a", b"one\ntwo\n"),
        File("crlf", b"a\r\nb\r\n"),
        File("empty", b""),
        File("end", b"no newline"),
        File("form", b"a\x0cb\n"),
        File("gone", b"x\n"),
        File('odd "name"\n+++ b/ok', b"q\n"),
        File("tool", b"true\n"),
        File("long", b"".join(b"line %d\n" % n for n in range(40))),
    )
)
PATCH = Patch(
    (
        File("a", b"one\n2\n"),
        File("crlf", b"a\r\nB\r\n"),
        File("end", b"no newline!"),
        File("form", b"a\x0cc\n"),
        File("__init__.py", b""),
        File("new", b"n\n"),
        File("run", b"#!/bin/sh\n", True),
        File("tool", b"true\n", True),
        File('odd "name"\n+++ b/ok', b"Q\n"),
        File("long", BEFORE.find("long").data.replace(b"line 20\n", b"twenty\n")),
    ),
    ("gone", "empty"),
)


def test_git_applies_what_is_shown(tmp_path):
    for file in BEFORE.files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(file.data)
    text = unified(BEFORE.files, PATCH).encode()
    subprocess.run(["git", "apply", "-p1", "-"], input=text, cwd=tmp_path, check=True, capture_output=True)
    assert read_folder(tmp_path, 1 << 20, 1 << 20) == PATCH.apply(BEFORE)


def test_every_touched_path_has_a_head_of_its_own_that_no_name_can_forge():
    lines = unified(BEFORE.files, PATCH).splitlines()
    assert sum(line.startswith("diff --git ") for line in lines) == len(list(PATCH.touched()))
    assert "+++ b/ok" not in lines
    assert r'diff --git "a/odd \"name\"\n+++ b/ok" "b/odd \"name\"\n+++ b/ok"' in lines


def test_empty_files_modes_and_binaries_are_told():
    text = unified((File("bin", b"\0\1"), *BEFORE.files), Patch((*PATCH.writes, File("bin", b"\0\2")), PATCH.deletes))
    assert "diff --git a/__init__.py b/__init__.py\nnew file mode 100644\n" in text
    assert "diff --git a/empty b/empty\ndeleted file mode 100644\n" in text
    assert "diff --git a/run b/run\nnew file mode 100755\n" in text
    assert "diff --git a/tool b/tool\nold mode 100644\nnew mode 100755\n" in text
    assert "Binary files a/bin and b/bin differ\n" in text


def test_an_original_that_was_not_kept_is_not_taken_for_a_new_file():
    (diff,) = compare((), Patch((File("a", b"x\n"),)), whole=False)
    assert diff.how == "written"
    assert "new file" not in unified((), Patch((File("a", b"x\n"),)), whole=False)


def test_files_too_long_to_compare_line_by_line_are_shown_replaced_and_apply_all_the_same(tmp_path, monkeypatch):
    old = File("a", b"".join(b"%d\n" % (n % 7) for n in range(20_000)))
    new = File("a", b"0\n" + b"".join(b"%d\n" % (n % 5) for n in range(60_000)))
    monkeypatch.setattr("composer_core.diffs.difflib.unified_diff", None)  # would take minutes
    text = unified((old,), Patch((new,))).encode()
    (tmp_path / "a").write_bytes(old.data)
    subprocess.run(["git", "apply", "-p1", "-"], input=text, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "a").read_bytes() == new.data


@pytest.mark.parametrize("path", ["b", "a/x", "a.py", "a", "zz", "", "c", "a/", "zzz"])
def test_find_equals_a_lookup_by_name(path):
    tree = Tree.of({name: name for name in ("b", "a/x", "a.py", "zz")})
    assert tree.find(path) == tree.paths().get(path)
