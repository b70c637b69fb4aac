"""The alternative formats of edits, and the tools that are contracts only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from composer_core import RunView, ToolError
from composer_plugin_code.config import ReadConfig
from composer_plugin_code.patches import parsed, patched
from composer_plugin_code.plugin import composer_check

CLAMP = "def clamp(x, low, high):\n    if x < low:\n        return low\n    return x\n"


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


# --- apply_patch


def test_a_patch_adds_updates_moves_and_deletes(bench: Any):
    bench.file("old.py", "x\n")
    bench.call("read_file", path="pkg/clamp.py")
    bench.call("read_file", path="old.py")
    sections = ["*** Add File: notes/a.md", "+# A", "+", "*** Delete File: README.md", "*** Update File: old.py"]
    sections += ["*** Move to: new.py", "*** Update File: pkg/clamp.py", "@@ def clamp"]
    sections += ["     if x < low:", "-        return low", "+        return high", "     return x"]
    output = bench.call("apply_patch", patch=patch(*sections))
    told = ["wrote notes/a.md", "deleted README.md", "deleted old.py", "wrote new.py", "wrote pkg/clamp.py"]
    assert output.text.split("\n") == told
    assert (bench.root / "notes/a.md").read_text() == "# A\n\n"
    assert (bench.root / "new.py").read_text() == "x\n" and not (bench.root / "old.py").exists()
    assert (bench.root / "pkg/clamp.py").read_text() == CLAMP.replace("return low", "return high")
    assert output.data["written"] == ["notes/a.md", "README.md", "old.py", "new.py", "pkg/clamp.py"]


def test_a_patch_that_does_not_fit_changes_nothing(bench: Any):
    text = patch("*** Add File: a", "+x", "*** Update File: pkg/clamp.py", "@@", "-no such line", "+y")
    refusal = bench.refusal("apply_patch", patch=text)
    assert refusal == "pkg/clamp.py does not hold the lines of a hunk after line 0; the first is 'no such line'"
    assert not (bench.root / "a").exists()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "changes no file"),
        (["hello"], "line 2 of the patch is 'hello'"),
        (["*** Add File: a", "x"], "the patch of a holds 'x'; expected lines that begin with '+'"),
        (["*** Delete File: README.md", "-A package."], "expected no lines"),
        (["*** Update File: README.md"], "holds no hunk"),
        (["*** Update File: README.md", "@@", "*x"], "begins with ' ', '-' or '+'"),
        (["*** Update File: README.md", "@@ class", "-A"], "no line that holds 'class'"),
        (["*** Update File: READM.md", "@@", "-A"], "did you mean README.md?"),
        (["*** Add File: README.md", "+x"], "README.md exists"),
        (["*** Delete File: a/../README.md", "*** Add File: README.md", "+x"], "changes README.md twice"),
        (["*** Update File: README.md", "*** Move to: pkg/clamp.py"], "pkg/clamp.py, which exists"),
        (["*** Add File: ../a", "+x"], "outside the workspace"),
    ],
)
def test_a_patch_that_cannot_be_read_says_where(bench: Any, lines: list[str], said: str):
    assert said in bench.refusal("apply_patch", patch=patch(*lines))
    assert "begins with the line" in bench.refusal("apply_patch", patch="\n".join(lines) or "x")


def hunks(*lines: str) -> Any:
    (change,) = parsed(patch("*** Update File: f", *lines))
    return change.hunks


@pytest.mark.parametrize(
    ("text", "lines", "result"),
    [
        ("a\nb\na\nb\n", ["@@", "-a", "+c", "@@", "-a", "+d"], "c\nb\nd\nb\n"),
        ("a\nb\na\nb\n", ["-a", "+c", "*** End of File"], None),
        ("a\nb\na\nb\n", ["-b", "+c", "*** End of File"], "a\nb\na\nc\n"),
        ("def f\n  x\ndef g\n  x\n", ["@@ def g", "-  x", "+  y"], "def f\n  x\ndef g\n  y\n"),
        ("def f\n", ["@@ def f", "+  x"], "def f\n  x\n"),
        ("a  \nb\n", [" a", "-b", "+c"], "a  \nc\n"),
        ("a\r\nb\r\n", ["-b", "+c"], "a\r\nc\r\n"),
        ("a\nb", ["-b", "+c"], "a\nc"),
        ("a\n", ["-a"], ""),
        ("", ["+a"], "a\n"),
        ("a\n\nb\n", [" a", "", "-b"], "a\n\n"),
    ],
)
def test_hunks_are_found_in_order_and_keep_what_they_do_not_name(text: str, lines: list[str], result: str | None):
    if result is None:
        with pytest.raises(ToolError, match="does not hold"):
            patched("f", text, hunks(*lines))
    else:
        assert patched("f", text, hunks(*lines)) == result


# --- edit_lines


@pytest.mark.parametrize(
    ("first", "last", "text", "result"),
    [
        (2, 3, "    x = 1", "def clamp(x, low, high):\n    x = 1\n    return x\n"),
        (1, 0, "import os\n", "import os\n" + CLAMP),
        (5, 4, "# end", CLAMP + "# end\n"),
        (2, 4, "", "def clamp(x, low, high):\n"),
        (4, 4, "\n\n", CLAMP.replace("    return x\n", "\n\n")),
    ],
)
def test_lines_are_replaced_inserted_and_deleted(bench: Any, first: int, last: int, text: str, result: str):
    bench.call("read_file", path="pkg/clamp.py")
    bench.call("edit_lines", path="pkg/clamp.py", first=first, last=last, text=text)
    assert (bench.root / "pkg/clamp.py").read_text() == result


def test_line_numbers_that_may_be_stale_are_refused(bench: Any):
    edit = {"path": "pkg/clamp.py", "first": 1, "last": 1, "text": "x"}
    assert "was not read" in bench.refusal("edit_lines", **edit)
    bench.call("read_file", path="pkg/clamp.py")
    assert bench.text("edit_lines", **edit) == "edited pkg/clamp.py: lines 1-1 are new; it has 4 lines"
    assert "has changed since it was read" in bench.refusal("edit_lines", **edit)
    bench.call("read_file", path="pkg/clamp.py")
    assert "2 to 9 are not among them" in bench.refusal("edit_lines", **{**edit, "first": 2, "last": 9})
    assert bench.text("edit_lines", **{**edit, "text": ""}) == "edited pkg/clamp.py: 1 lines are gone; it has 3 lines"


def test_an_edit_by_lines_keeps_the_line_ends_of_the_file(bench: Any):
    bench.file("dos", b"a\r\nb")
    bench.call("read_file", path="dos")
    bench.call("edit_lines", path="dos", first=3, last=2, text="c")
    assert (bench.root / "dos").read_bytes() == b"a\r\nb\r\nc\r\n"


# --- contracts only


def checked(*tools: str, stages: tuple[str, ...] = ()) -> list[str]:
    config: Any = SimpleNamespace(stages=stages)
    view = RunView(config, {}, {"tools": tuple((name, None) for name in tools)})
    return [f"{problem.message}; {problem.fix}" for problem in composer_check(view)]


def test_a_run_that_chooses_a_promised_tool_is_told_who_provides_it():
    (text,) = checked("code/grep", "code/semantic_search")
    assert text.startswith("code/semantic_search is a contract only") and "semsearch/semantic_search" in text
    assert not checked("semsearch/semantic_search", "code/grep")


def test_a_search_of_the_web_is_refused_where_something_is_trained():
    (text,) = checked("mine/web_search", stages=("rl",))
    assert "mine/web_search is off in training" in text
    assert not checked("mine/web_search")


def test_a_promised_tool_that_is_called_says_so(bench: Any):
    for name in ("semantic_search", "web_search"):
        assert "no plugin" in bench.refusal(name, query="x")


@pytest.mark.parametrize("numbers", [True, False])
def test_edits_by_line_numbers_need_numbers_to_be_shown(numbers: bool):
    tools = (("code/read_file", ReadConfig(line_numbers=numbers)), ("code/edit_lines", None))
    config: Any = SimpleNamespace(stages=())
    found = [problem.message for problem in composer_check(RunView(config, {"tools": tools}, {"tools": ()}))]
    assert found == ([] if numbers else ["code/edit_lines edits by line numbers, which the model is not shown"])
