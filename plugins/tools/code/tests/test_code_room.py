"""What a tool leaves out where its own limit and the episode's `output_chars` meet: it is never cut a second time."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_core.types import Limits
from composer_plugin_code.config import LintConfig
from composer_plugin_code.room import Line, fitted, left_of

DEFAULT = Limits().output_chars
WIDE = 100_000
ON = re.compile(r"\n\.\.\. lines (\d+)-(\d+) of (\d+); read on with offset (\d+)$")
MORE = re.compile(r"\n\.\.\. (\d+) more")


@pytest.fixture(params=[DEFAULT, WIDE])
def room(bench: Any, request: Any) -> int:
    bench.limits = Limits(output_chars=request.param)
    return request.param


def entire(bench: Any, room: int, name: str, **arguments: Any) -> str:
    """The text of a result that fits, and was not cut by the toolbox."""
    result = bench.shown(name, **arguments)
    assert result.ok and result.cut_chars == 0 and len(result.text) <= room
    return result.text


def windows(bench: Any, room: int, path: str) -> list[str]:
    """The lines of a file, as they are shown by one read after another."""
    lines: list[str] = []
    while True:
        text = entire(bench, room, "read_file", path=path, offset=len(lines) + 1)
        found = ON.search(text)
        rows = (text[: found.start()] if found else text).split("\n")
        if found:
            shown = (len(lines) + 1, len(lines) + len(rows), len(lines) + len(rows) + 1)
            assert tuple(int(found[at]) for at in (1, 2, 4)) == shown
        lines += rows
        if not found:
            return lines


# --- read_file


def test_2001_lines_are_read_in_windows_that_leave_out_none(bench: Any, room: int):
    bench.file("long", "".join(f"x{number}\n" for number in range(1, 2002)))
    text = entire(bench, room, "read_file", path="long")
    if room == WIDE:
        assert text.endswith("\n2000: x2000\n... lines 1-2000 of 2001; read on with offset 2001")
    assert windows(bench, room, "long") == [f"{number}: x{number}" for number in range(1, 2002)]


def test_more_than_50_kb_are_read_in_windows_that_leave_out_none(bench: Any, room: int):
    lines = [f"{number}: " + "y" * 90 for number in range(1, 601)]
    bench.file("big", "".join(line.partition(": ")[2] + "\n" for line in lines))
    first = bench.shown("read_file", path="big")
    assert first.data["whole"] is False
    assert len(first.text.encode()) <= 50_000 + 100
    assert windows(bench, room, "big") == lines


def test_a_line_of_2001_characters_is_cut_at_2000(bench: Any, room: int):
    bench.file("wide", "z" * 2001 + "\nend\n")
    result = bench.shown("read_file", path="wide")
    assert result.text == f"1: {'z' * 2000}... (1 more characters)\n2: end" and not result.cut_chars
    assert result.data == {"read": "wide", "lines": 2, "whole": False}


@pytest.mark.parametrize("tail", ["", "\nend\n"])
def test_a_line_that_is_longer_than_the_room_is_cut_and_says_of_how_much(bench: Any, tail: str):
    bench.limits = Limits(output_chars=256)
    bench.file("wide", "z" * 300 + tail)
    text = entire(bench, 256, "read_file", path="wide")
    head, _, rest = text.partition("... (")
    shown = len(head) - len("1: ")
    told = "\n... lines 1-1 of 2; read on with offset 2" if tail else ""
    assert rest == f"{300 - shown} more characters){told}" and shown > 150
    assert bench.shown("read_file", path="wide").data["whole"] is False
    assert entire(bench, 256, "read_file", path="wide", offset=2) == "2: end" if tail else True


def test_what_is_whole_was_shown_entirely(bench: Any):
    bench.file("a", "x" * 60 + "\n" + "y" * 60)
    assert bench.shown("read_file", path="a").data["whole"] is True
    bench.limits = Limits(output_chars=120)
    assert bench.shown("read_file", path="a").data == {"read": "a", "lines": 1, "whole": False}


def test_a_result_that_fills_the_room_exactly_is_left_as_it_is(bench: Any):
    bench.file("a", "x" * 60 + "\n" + "y" * 137)
    bench.limits = Limits(output_chars=60 + 137 + len("1: \n2: "))
    assert entire(bench, bench.limits.output_chars, "read_file", path="a") == f"1: {'x' * 60}\n2: {'y' * 137}"


def test_lines_that_were_not_shown_are_not_edited_by_number(bench: Any):
    bench.file("long", "".join(f"x{number}\n" for number in range(1, 1001)))
    text = entire(bench, DEFAULT, "read_file", path="long")
    found = ON.search(text)
    assert found
    last = int(found[2])
    edit = {"path": "long", "first": last, "last": last + 1, "text": "new"}
    said = f"line {last + 1} of long was not shown; read it before you edit it by its number"
    assert bench.refusal("edit_lines", **edit) == said
    assert "was not shown" in bench.refusal("edit_lines", **{**edit, "first": 999, "last": 998})
    entire(bench, DEFAULT, "read_file", path="long", offset=last + 1, limit=1)
    bench.sandbox.file_bytes = WIDE
    assert bench.text("edit_lines", **edit).startswith("edited long")


def test_lines_are_inserted_beside_those_that_were_shown(bench: Any):
    for first in (2, 3):
        bench.file("a", "1\n2\n3\n4\n")
        bench.text("read_file", path="a", offset=2, limit=1)
        assert bench.text("edit_lines", path="a", first=first, last=first - 1, text="x").startswith("edited a")
    bench.file("empty", "")
    bench.text("read_file", path="empty")
    assert bench.text("edit_lines", path="empty", first=1, last=0, text="x").startswith("edited empty")


# --- the others


def test_101_matches_of_grep_are_cut_at_whole_lines(bench: Any, room: int):
    bench.file("m", "".join(f"match {number} {'w' * 60}\n" for number in range(1, 102)))
    rows = entire(bench, room, "grep", pattern="match").split("\n")
    left = 1 if room == WIDE else 102 - len(rows)
    assert rows[-1] == f"... {left} more matches; narrow path or pattern"
    assert rows[:-1] == [f"m:{number}:match {number} {'w' * 60}" for number in range(1, 102 - left)]
    assert bench.shown("grep", pattern="match").data["matches"] == 101


def test_101_files_of_glob_are_cut_at_whole_lines(bench: Any, room: int):
    names = [f"deep/{number:03}-{'n' * 60}.txt" for number in range(101)]
    for name in names:
        bench.file(name, "")
    rows = entire(bench, room, "glob", pattern="*.txt").split("\n")
    left = 1 if room == WIDE else 102 - len(rows)
    assert rows == [*names[: 101 - left], f"... {left} more files; narrow path or pattern"]


def test_501_entries_of_list_dir_are_cut_at_whole_lines(bench: Any, room: int):
    names = [f"{number:03}-{'n' * 30}" for number in range(501)]
    for name in names:
        bench.file(f"deep/{name}", "")
    rows = entire(bench, room, "list_dir", path="deep").split("\n")
    left = 1 if room == WIDE else 502 - len(rows)
    assert rows == [*names[: 501 - left], f"... {left} more entries"]


def test_lints_are_cut_at_whole_lines(bench: Any):
    bench.file("a.py", "".join(f"import {'m' * 30}{number}\n" for number in range(60)))
    bench.limits = Limits(output_chars=1000)
    rows = entire(bench, 1000, "read_lints").split("\n")
    assert rows[-1] == f"... {60 - len(rows) + 1} more" and all(row.startswith("a.py:") for row in rows[:-1])
    bench.limits = Limits(output_chars=WIDE)
    assert entire(bench, WIDE, "read_lints").endswith("\n... 10 more")
    assert bench.text("read_lints", LintConfig(max_lints=60)).count("\n") == 59


def test_30001_characters_of_terminal_output_keep_half_and_half_and_are_left_in_a_file(bench: Any, room: int):
    bench.sandbox.file_bytes = WIDE
    line = "t" * 99
    bench.file("out", f"{line}\n" * 300 + "!")
    text = entire(bench, room, "run_terminal", command="cat out")
    most = min(room, 30_000)
    assert text.endswith("!\n(all of it: .agent/output-1.txt)") and text.startswith(line)
    head, cut, tail = re.split(r"\n\.\.\. (\d+) characters cut \.\.\.\n", text)
    note = "\n(all of it: .agent/output-1.txt)"
    assert len(head) == len(tail) - len(note) and most - 5 <= len(text) <= most
    assert int(cut) == 30_001 - 2 * len(head)
    assert windows(bench, room, ".agent/output-1.txt") == [f"{n}: {line}" for n in range(1, 301)] + ["301: !"]
    found = entire(bench, room, "grep", pattern="!", path=".agent/output-1.txt")
    assert found == ".agent/output-1.txt:301:!"


def test_an_output_that_the_sandbox_has_cut_is_not_said_to_be_left_in_a_file_entirely(bench: Any, room: int):
    bench.sandbox.file_bytes = 200_000
    bench.sandbox.output_bytes = 110_000
    text = entire(bench, room, "run_terminal", command="seq 30000; echo err >&2")
    total = sum(len(f"{number}\n") for number in range(1, 30_001)) + len("err\n")
    kept = 110_000 + len("err\n")
    assert text.endswith(f"\nerr\n(what was kept of it, {kept} of {total} bytes: .agent/output-1.txt)")
    assert "all of it" not in text
    left = entire(bench, room, "run_terminal", command="tail -n 3 .agent/output-1.txt")
    assert left.endswith(f"\n... {total - kept} bytes dropped\nerr")


# --- the rule itself


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.integers(0, 300), min_size=1, max_size=40),
    most=st.integers(1, 40),
    room=st.integers(120, 3000),
    line_chars=st.integers(1, 200),
)
def test_as_many_whole_lines_are_shown_as_fit_with_what_is_said_of_the_others(
    texts: list[int], most: int, room: int, line_chars: int
):
    lines = [Line("x" * length, line_chars, f"{number}: ") for number, length in enumerate(texts, 1)][:most]
    more = left_of(len(texts))

    def joined(count: int) -> str:
        return "\n".join(filter(None, [*(line.shown for line in lines[:count]), more(count)]))

    text, count = fitted(lines, room, more)
    assert len(text) <= room
    fits = [number for number in range(1, len(lines) + 1) if len(joined(number)) <= room]
    if fits:
        assert (text, count) == (joined(fits[-1]), fits[-1])
    else:
        assert count == 1 and text.startswith("1: x") and "more characters)" in text
