"""What grep counts: matches, whatever stands around them, and never more than it saw."""

from __future__ import annotations

from typing import Any

from composer_core.protocols import ExecResult
from composer_core.types import Limits

FILE = "".join(f"{'hit' if number % 10 == 5 else 'row'} {number}\n" for number in range(1, 61))


def test_lines_around_matches_do_not_count_as_matches(bench: Any):
    bench.file("f", FILE)
    output = bench.call("grep", pattern="hit", around=3)
    assert output.data["matches"] == 6 and "more" not in output.text
    assert output.text.count("\n--\n") == 5 and output.text.startswith("f-2-row 2\nf-3-row 3\nf-4-row 4\nf:5:hit 5\n")


def test_a_limit_is_of_matches_and_keeps_what_stands_around_them(bench: Any):
    bench.file("f", FILE)
    text = bench.text("grep", pattern="hit", around=1, limit=2)
    first, second = "f-4-row 4\nf:5:hit 5\nf-6-row 6", "f-14-row 14\nf:15:hit 15\nf-16-row 16"
    assert text == f"{first}\n--\n{second}\n... 4 more matches; narrow path or pattern"
    text = bench.text("grep", pattern="hit|row 6", around=1, limit=1)
    assert text == "f-4-row 4\nf:5:hit 5\n... 7 more matches; narrow path or pattern"


def test_101_matches_with_lines_around_them_are_cut_at_100(bench: Any):
    bench.file("f", "a\nb\nhit\nc\nd\n" * 101)
    bench.limits = Limits(output_chars=100_000)
    result = bench.shown("grep", pattern="hit", around=2)
    assert result.text.count(":hit") == 100 and result.text.endswith("\n... 1 more matches; narrow path or pattern")
    assert result.data["matches"] == 101 and not result.cut_chars


def test_names_and_texts_that_look_like_a_number_are_not_taken_for_one(bench: Any):
    bench.file("a-1-b:2:c", "--\nx-3-y\nhit:4:\n\x0cz\r\n")
    output = bench.call("grep", pattern="hit", around=2)
    assert output.text == "a-1-b:2:c-1---\na-1-b:2:c-2-x-3-y\na-1-b:2:c:3:hit:4:\na-1-b:2:c-4-\x0cz"
    assert output.data["matches"] == 1


def test_lines_around_a_match_that_do_not_fit_are_told(bench: Any):
    bench.file("f", "hit\n" + "x" * 100 + "\n" + "y" * 100 + "\n")
    bench.limits = Limits(output_chars=200)
    result = bench.shown("grep", pattern="hit", around=2)
    assert result.text == f"f:1:hit\nf-2-{'x' * 100}\n... 1 more lines around them; narrow path or pattern"
    assert not result.cut_chars


def test_what_is_counted_of_an_output_that_was_cut_is_said_to_be_the_least(bench: Any):
    bench.script(ExecResult("exited", 0, b"./a:1:x\n./a:2:x\n./a:3:", stdout_bytes=5_000_000))
    least = "... at least 3 matches: the search printed more than is kept; narrow path or pattern"
    assert bench.text("grep", pattern="x").split("\n")[-1] == least
    assert bench.text("grep", pattern="x", limit=2).endswith("\n... at least 1 more matches; narrow path or pattern")
    bench.script(ExecResult("exited", 0, b"./a\n./b\n", stdout_bytes=5_000_000))
    assert bench.text("glob", pattern="*").startswith("a\nb\n... at least 2 files: ")
