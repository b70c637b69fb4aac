"""A change is as large as the group's others, leaves nothing lying about, and hides no reasoning in comments."""

import time

import pytest

from composer_core.trees import File, Patch
from composer_plugin_behavior.config import DiffConfig
from composer_plugin_behavior.diff import diff, facts_of
from composer_plugin_behavior.plugin import composer_rewards
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.traces import attempt

PLAIN = DiffConfig(free=2.0, most=5.0, least_lines=5, comments=0.5, least_chars=100)
REASONING = "    # first I thought that the bug is in the loop, then I saw that it is not\n"


def lines(count, path="a.py", **fields):
    """A change that adds so many lines."""
    return attempt(patch={path: "".join(f"x{n} = {n}\n" for n in range(count))}, originals={path: ""}, **fields)


def code(text, path="a.py"):
    return attempt(patch={path: text}, originals={path: ""})


class TestDiff(RewardContract):
    def build(self):
        return next(spec for spec in composer_rewards() if spec.name == "diff")

    def situations(self):
        def of(value, *group):
            return Situation({"group": group, "config": PLAIN}, value)

        return {
            "alike": of(0.0, lines(10), lines(10), lines(10)),
            "alone": of(0.0, lines(500)),
            "not solved": of(-1.0, lines(10, solved=False)),
        }


def parts(*group):
    return [one.parts for one in diff(group, PLAIN)]


@pytest.mark.parametrize(("count", "size"), [(10, 0.0), (20, 0.0), (35, 0.5), (50, 1.0), (900, 1.0)])
def test_size_is_measured_against_the_median_of_those_that_solved_it(count, size):
    usual = [lines(10), lines(10), lines(10)]
    assert parts(*usual, lines(count))[-1]["size"] == pytest.approx(size)


def test_members_that_failed_have_no_say_in_what_is_usual():
    assert parts(lines(40), lines(10), lines(10), *[lines(400, solved=False)] * 9)[0]["size"] == pytest.approx(2 / 3)


def test_small_repairs_may_differ():
    assert [one["size"] for one in parts(lines(1), lines(1), lines(10))] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "path", ["repro.py", "a.py.orig", "src/debug_it.py", "x/__pycache__/a.pyc", "tmp/a.txt", "OUT.LOG"]
)
def test_new_files_that_work_leaves_behind_are_stray(path):
    (found,) = diff([attempt(patch={path: "1"})], PLAIN)
    assert (found.value, found.note) == (pytest.approx(-1 / 3), path)


def test_files_that_were_there_before_and_new_sources_are_not():
    kept = attempt(patch={"debug.py": "2", "src/new.py": "3"}, originals={"debug.py": "1"})
    assert parts(kept)[0]["stray"] == 0.0


@pytest.mark.parametrize(
    ("text", "path", "comments"),
    [
        ("x = 1\n" + REASONING * 4, "a.py", 1.0),
        ("x = 1  " + "# because of this and that" * 8 + "\n", "a.py", 1.0),
        ("def f():\n    '''" + "why it is so\n    " * 12 + "'''\n", "a.py", 1.0),
        ("let x = 1\n" + "// first I thought\n" * 9, "a.js", 1.0),
        ("let x = 1\n/*\n" + "first I thought of it\n" * 9 + "*/\n", "a.js", 1.0),
        ("let x = 1 " + "// first I thought" * 9 + "\n", "a.ts", 1.0),
        ("x = 1 " + "# first I thought" * 9 + "\n", "a.sh", 1.0),
        ("let x = '/*'; let y = \"// no comment\"; let z = `\n// none`\n" * 9, "a.js", 0.0),
        ("fetch(http://example.org/a/rather/long/path)\n" * 9, "a.js", 0.0),
        ("x = '# " + "no comment " * 20 + "'\n", "a.py", 0.0),
        ("def half(n):\n    return n / 2  # exact\n" * 9, "a.py", 0.0),
        ("# one line\n", "a.py", 0.0),
        ("# a heading of a page that is no program at all, and goes on for a while, as headings do\n" * 3, "a.md", 0.0),
    ],
    ids=[
        "lines",
        "behind code",
        "docstring",
        "javascript",
        "block",
        "behind javascript",
        "behind shell",
        "in javascript's texts",
        "address",
        "in a text",
        "a few",
        "short",
        "markdown",
    ],
)
def test_reasoning_in_comments_costs(text, path, comments):
    (found,) = parts(code(text, path))
    assert found["comments"] == pytest.approx(comments, abs=0.35)
    assert bool(found["comments"]) == bool(comments)


def test_comments_that_were_there_before_are_not_the_agents():
    trace = attempt(patch={"a.py": REASONING * 9 + "x = 2\n"}, originals={"a.py": REASONING * 9 + "x = 1\n"})
    assert facts_of(trace, PLAIN).comments == 0


def test_a_row_in_a_block_that_was_there_before_is_a_comment():
    before = "/*\nold\n*/\nint x;\n"
    after = "/*\nold\n" + "because of this and that\n" * 9 + "*/\nint x;\n"
    facts = facts_of(attempt(patch={"a.c": after}, originals={"a.c": before}), PLAIN)
    assert facts.comments == facts.chars == 9 * len("because of this and that")


@pytest.mark.parametrize("piece", ["/*", "/", "`", "\\`", '"', '\\"', "'", "--[[", "{-", "# "])
def test_a_file_of_any_kind_is_taken_apart_in_no_time(piece):
    start = time.monotonic()
    for end in ("js", "lua", "sh", "sql"):
        facts_of(code(piece * (1_000_000 // len(piece)), f"a.{end}"), PLAIN)
    assert time.monotonic() - start < 10.0


def test_a_file_whose_lines_end_in_carriage_returns_breaks_nothing():
    assert facts_of(code("x = 1\r\r\r'a text'\r# and a comment"), PLAIN).comments > 0


def test_files_whose_originals_were_not_kept_or_that_are_no_text_count_for_nothing():
    from attrs import evolve

    unknown = evolve(attempt(patch={"a.py": "x\n" * 99}), originals_whole=False)
    binary = attempt(patch=Patch((File("a.bin", b"\xff\x00" * 500),)))
    assert [facts_of(trace, PLAIN).lines for trace in (unknown, binary)] == [0, 0]


def test_bounds_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="most must be above free"):
        DiffConfig(free=3.0, most=3.0)
