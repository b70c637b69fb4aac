"""The tools over a real folder: what they return, what they refuse, and what they report to rewards."""

from __future__ import annotations

import os
from typing import Any

import pytest

from composer_core import ToolOutput
from composer_core.protocols import ExecResult
from composer_core.types import Limits
from composer_plugin_code.config import GlobConfig, GrepConfig, LintConfig, ListConfig, ReadConfig, TerminalConfig
from composer_plugin_code.terminal import compacted

# --- list_dir, read_file, write_file


def test_list_dir_marks_folders_and_states_what_it_leaves_out(bench: Any):
    assert bench.text("list_dir") == ".ruff.toml\nREADME.md\npkg/"
    assert bench.text("list_dir", path="./pkg/") == "clamp.py"
    assert bench.text("list_dir", ListConfig(max_entries=2)) == ".ruff.toml\nREADME.md\n... 1 more entries"
    (bench.root / "empty").mkdir()
    assert bench.text("list_dir", path="empty") == "(empty)"
    assert bench.refusal("list_dir", path="nope").startswith("no folder nope")


def test_read_file_numbers_lines_or_returns_them_raw(bench: Any):
    assert bench.text("read_file", path="pkg/clamp.py").startswith("1: def clamp(x, low, high):\n2:     if x")
    raw = bench.text("read_file", ReadConfig(line_numbers=False), path="pkg/clamp.py")
    assert raw + "\n" == (bench.root / "pkg/clamp.py").read_text()
    bench.file("empty", "")
    assert bench.text("read_file", path="empty") == "(empty)"
    bench.file("blank", "\n")
    assert bench.text("read_file", path="blank") == "1: "


def test_read_file_shows_a_window_and_says_how_to_go_on(bench: Any):
    text = bench.text("read_file", path="pkg/clamp.py", offset=2, limit=1)
    assert text == "2:     if x < low:\n... lines 2-2 of 4; read on with offset 3"
    assert "lines 1-3 of 4" in bench.text("read_file", ReadConfig(max_lines=3), path="pkg/clamp.py", limit=100)
    cut_line = bench.text("read_file", ReadConfig(max_line_chars=5), path="README.md")
    assert cut_line == "1: A pac... (5 more characters)"
    assert "after its end" in bench.refusal("read_file", path="README.md", offset=2)
    assert "count from 1" in bench.refusal("read_file", path="README.md", offset=0)
    assert "count from 1" in bench.refusal("read_file", path="README.md", limit=0)


def test_read_file_reports_what_was_read(bench: Any):
    assert bench.call("read_file", path="./pkg/../README.md").data == {"read": "README.md", "lines": 1, "whole": True}
    assert bench.call("read_file", path="pkg/clamp.py", limit=2).data["whole"] is False
    assert bench.state["read"] == {"README.md", "pkg/clamp.py"}


def test_a_path_that_is_not_there_gets_near_names(bench: Any):
    assert bench.refusal("read_file", path="pkg/clmap.py") == "no file pkg/clmap.py; did you mean pkg/clamp.py?"
    assert bench.refusal("read_file", path="src/a.py") == "no file src/a.py: there is no folder src"
    text = bench.refusal("read_file", path="pgk/clamp.py")
    assert text == "no file pgk/clamp.py: there is no folder pgk; did you mean pkg/clamp.py?"
    assert bench.refusal("read_file", path="README.md/a") == "no file README.md/a: README.md is no folder"
    assert bench.refusal("list_dir", path="pkgs") == "no folder pkgs; did you mean pkg?"
    assert bench.refusal("list_dir", path="README.md") == "README.md is a file; use read_file"
    assert "use list_dir" in bench.refusal("read_file", path="pkg")
    assert "list_dir shows" in bench.refusal("read_file", path="zzz")
    assert "name a file" in bench.refusal("read_file", path=".")
    os.mkfifo(bench.root / "pipe")
    assert "not a regular file" in bench.refusal("read_file", path="pipe")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "pkg/../../x", "a\0b"])
@pytest.mark.parametrize(
    "tool",
    ["read_file", "write_file", "edit_file", "edit_lines", "delete_file", "list_dir", "glob", "grep", "read_lints"],
)
def test_paths_outside_the_workspace_are_refused_by_every_tool(bench: Any, tool: str, path: str):
    more = {
        "write_file": {"content": ""},
        "edit_file": {"old": "a", "new": "b"},
        "edit_lines": {"first": 1, "last": 1, "text": ""},
        "glob": {"pattern": "*"},
        "grep": {"pattern": "a"},
    }.get(tool, {})
    arguments = {"paths": [path]} if tool == "read_lints" else {"path": path}
    text = bench.refusal(tool, **arguments, **more)
    assert "outside the workspace" in text or "NUL" in text


def test_binary_files_are_not_shown_and_broken_text_is(bench: Any):
    bench.file("a.bin", b"\x00\x01")
    bench.file("latin", b"caf\xe9\n")
    assert bench.refusal("read_file", path="a.bin") == "a.bin is a binary file of 2 bytes"
    assert bench.text("read_file", path="latin") == "1: caf\ufffd"


def test_read_file_shows_no_more_bytes_than_it_may(bench: Any):
    bench.file("wide", "é" * 30 + "\n" + "b" * 30 + "\n" + "c" * 30 + "\n")
    small = ReadConfig(max_bytes=100, line_numbers=False)
    text = bench.text("read_file", small, path="wide")
    assert text.split("\n")[:2] == ["é" * 30, "b" * 30] and text.endswith("lines 1-2 of 3; read on with offset 3")
    assert bench.text("read_file", small, path="wide", offset=3) == "c" * 30
    assert bench.text("read_file", ReadConfig(max_bytes=1), path="wide").startswith("1: é")


def test_delete_file_deletes_one_file_and_names_others_near_it(bench: Any):
    bench.call("read_file", path="README.md")
    output = bench.call("delete_file", path="README.md")
    assert output.text == "deleted README.md" and not (bench.root / "README.md").exists()
    assert output.data == {"deleted": "README.md", "read_before": True}
    assert bench.refusal("delete_file", path="pkg") == "pkg is a folder; use list_dir"
    assert bench.refusal("delete_file", path="pkg/clam.py") == "no file pkg/clam.py; did you mean pkg/clamp.py?"
    assert "name a file" in bench.refusal("delete_file", path="")


def test_write_file_makes_folders_and_reports_whether_the_file_was_known(bench: Any):
    output = bench.call("write_file", path="new/deep/a.py", content="é\n")
    assert output.text == "wrote new/deep/a.py"
    assert output.data == {"written": "new/deep/a.py", "read_before": False}
    assert (bench.root / "new/deep/a.py").read_bytes() == "é\n".encode()
    assert bench.call("write_file", path="new/deep/a.py", content="").data["read_before"] is True


def test_what_cannot_be_written_says_why(bench: Any):
    assert "cannot be written" in bench.refusal("write_file", path="pkg", content="")
    assert "at most 1000 bytes" in bench.refusal("write_file", path="big", content="x" * 2000)
    assert "name a file" in bench.refusal("write_file", path="", content="")


# --- edit_file


def test_edit_file_replaces_the_one_place(bench: Any):
    bench.call("read_file", path="pkg/clamp.py")
    output = bench.call("edit_file", path="pkg/clamp.py", old="x < low", new="x <= low")
    assert output.text == "edited pkg/clamp.py"
    assert output.data == {"written": "pkg/clamp.py", "read_before": True}
    assert "if x <= low:" in (bench.root / "pkg/clamp.py").read_text()


def test_edit_file_keeps_every_other_byte(bench: Any):
    bench.file("odd", b"a = 1\r\nb = '\xff'\r\n# \x0c\r\n")
    bench.call("edit_file", path="odd", old="a = 1\nb", new="a = 2\nc")
    assert (bench.root / "odd").read_bytes() == b"a = 2\r\nc = '\xff'\r\n# \x0c\r\n"


def test_an_edit_that_is_not_unique_names_the_lines(bench: Any):
    text = bench.refusal("edit_file", path="pkg/clamp.py", old="return", new="yield")
    assert text == "old is not unique in pkg/clamp.py: it begins on lines 3, 4; add text around it"
    bench.file("a", "xxx")
    assert "lines 1, 1" in bench.refusal("edit_file", path="a", old="xx", new="y")
    bench.file("b", "x\n" * 40)
    assert "9, 10, ..." in bench.refusal("edit_file", path="b", old="x", new="y")


def test_an_edit_of_absent_text_shows_the_nearest_line(bench: Any):
    text = bench.refusal("edit_file", path="pkg/clamp.py", old="if x > low:", new="y")
    assert text == "old is not in pkg/clamp.py; line 2 (nearest):     if x < low:"
    text = bench.refusal("edit_file", path="pkg/clamp.py", old="  if x < low:\n  return", new="y")
    assert "line 2 (spaces differ" in text
    assert "copy the text exactly" in bench.refusal("edit_file", path="pkg/clamp.py", old="@@@@", new="y")
    numbered = bench.refusal("edit_file", path="pkg/clamp.py", old="2:     if x < low:", new="y")
    assert "leave line numbers out" in numbered


def test_edit_file_replaces_every_place_when_it_is_told_to(bench: Any):
    output = bench.call("edit_file", path="pkg/clamp.py", old="return", new="yield", replace_all="true")
    assert output.text == "edited pkg/clamp.py: 2 places"
    assert (bench.root / "pkg/clamp.py").read_text().count("yield") == 2
    assert "not in" in bench.refusal("edit_file", path="pkg/clamp.py", old="return", new="x", replace_all=True)


def test_edits_that_say_nothing_are_refused(bench: Any):
    assert "old is empty" in bench.refusal("edit_file", path="README.md", old="", new="a")
    assert "nothing to edit" in bench.refusal("edit_file", path="README.md", old="A", new="A")
    assert "no file" in bench.refusal("edit_file", path="none", old="A", new="B")
    assert (bench.root / "README.md").read_text() == "A package.\n"


# --- grep


def test_grep_finds_lines_sorted_by_path(bench: Any):
    bench.file("a/z.py", "return\n")
    output = bench.call("grep", pattern="return")
    expected = ["a/z.py:1:return", "pkg/clamp.py:3:        return low", "pkg/clamp.py:4:    return x"]
    assert output.text.split("\n") == expected
    assert output.data == {"matches": 3, "searched": ""}


def test_grep_narrows_by_path_glob_and_case(bench: Any):
    assert bench.text("grep", pattern="a package", ignore_case=True) == "README.md:1:A package."
    assert bench.text("grep", pattern="a package") == "no matches"
    assert bench.text("grep", pattern="package", include="*.py") == "no matches"
    assert bench.text("grep", pattern="return x", path="pkg/clamp.py") == "pkg/clamp.py:4:    return x"
    assert bench.text("grep", pattern="-> x") == "no matches"


def test_grep_shows_paths_counts_or_lines_around_as_asked(bench: Any):
    bench.file("a/z.py", "return\n")
    assert bench.text("grep", pattern="return", mode="files") == "a/z.py\npkg/clamp.py"
    assert bench.text("grep", pattern="return", mode="counts") == "a/z.py:1\npkg/clamp.py:2"
    around = bench.text("grep", pattern="x < low", around=1).split("\n")
    assert [line.split("clamp.py")[1][:3] for line in around] == ["-1-", ":2:", "-3-"]
    assert bench.text("grep", pattern="return", limit=1).endswith("... 2 more matches; narrow path or pattern")
    assert "at least" in bench.refusal("grep", pattern="a", around=-1)
    assert "one of lines, files, counts" in bench.refusal("grep", pattern="a", mode="all")


# --- glob


def test_glob_finds_files_by_name_sorted_and_says_what_it_cut(bench: Any):
    bench.file("a/z.py", "")
    assert bench.text("glob", pattern="*.py") == "a/z.py\npkg/clamp.py"
    assert bench.text("glob", pattern="*.py", path="pkg") == "pkg/clamp.py"
    assert bench.text("glob", pattern="**/cl*.py") == "pkg/clamp.py"
    assert bench.text("glob", pattern="*.rs") == "no files"
    assert bench.text("glob", GlobConfig(max_files=1), pattern="*.py").endswith(
        "... 1 more files; narrow path or pattern"
    )
    assert bench.refusal("glob", pattern="*", path="pgk") == "no file or folder pgk; did you mean pkg?"
    assert "error parsing glob" in bench.refusal("glob", pattern="[")


def test_grep_says_what_it_cut(bench: Any):
    text = bench.text("grep", GrepConfig(max_matches=1, max_line_chars=3), pattern="return")
    assert text.startswith("pkg... (") and text.endswith("... 1 more matches; narrow path or pattern")


def test_grep_explains_a_bad_pattern_and_a_missing_path(bench: Any):
    assert "regex parse error" in bench.refusal("grep", pattern="(")
    assert bench.refusal("grep", pattern="a", path="pgk") == "no file or folder pgk; did you mean pkg?"
    assert "NUL" in bench.refusal("grep", pattern="\0")


# --- run_terminal


def test_run_terminal_returns_stdout_then_stderr_and_the_exit_code_only_when_it_failed(bench: Any):
    output = bench.call("run_terminal", command="echo err >&2; echo out")
    assert (output.text, output.ok, output.exit_code) == ("out\nerr", True, 0)
    output = bench.call("run_terminal", command="echo out; exit 3")
    assert (output.text, output.ok, output.exit_code) == ("out\nexit 3", True, 3)
    assert bench.text("run_terminal", command="true") == ""
    assert bench.text("run_terminal", command="false") == "exit 1"


def test_run_terminal_states_timeouts_and_signals(bench: Any):
    output = bench.call("run_terminal", command="echo begun; sleep 30", timeout="1")
    assert (output.text, output.ok, output.exit_code) == ("begun\ntimeout after 1 s", False, None)
    assert bench.text("run_terminal", command="kill -9 $$") == "killed by signal 9"


@pytest.mark.parametrize(("status", "ending"), [("oom", "out of memory"), ("lost", "the command was lost")])
def test_run_terminal_states_how_the_sandbox_ended_a_command(bench: Any, status: str, ending: str):
    bench.script(ExecResult(status, None, b"part", b"", 14))
    output = bench.call("run_terminal", command="x")
    assert output.text == f"part\n... 10 bytes dropped\n{ending}" and not output.ok
    assert output.data == {"status": status, "output_bytes": 14}


def test_a_commands_time_is_bounded_by_the_episodes_limit(bench: Any):
    sandbox = bench.script(ExecResult("exited", 0))
    bench.limits = Limits(command_s=5.0)
    for timeout in (None, 3, 100):
        bench.call("run_terminal", **({} if timeout is None else {"timeout": timeout}), command="x")
    assert sandbox.timeouts == [5.0, 3.0, 5.0]
    assert "at least 1" in bench.refusal("run_terminal", command="x", timeout=0)
    assert "NUL" in bench.refusal("run_terminal", command="\0")


def test_long_output_keeps_head_and_tail_and_the_exit_code(bench: Any):
    command = "echo first; seq 200; echo last; exit 2"
    text = bench.text("run_terminal", TerminalConfig(max_chars=100), command=command)
    assert text.startswith("first\n1\n") and text.endswith("last\n(all of it: .agent/output-1.txt)\nexit 2")
    assert text.count(" characters cut ...") == 1 and len(text) <= 100
    bench.limits = Limits(output_chars=90)
    assert len(bench.text("run_terminal", command=command)) <= 90


def test_the_whole_of_a_long_output_is_left_in_a_file_that_the_agent_can_read(bench: Any):
    bench.text("run_terminal", TerminalConfig(max_chars=100), command="seq 100")
    rest = bench.text("read_file", path=".agent/output-1.txt", offset=50, limit=1)
    assert rest.startswith("50: 50\n") and "lines 50-50 of 100" in rest
    assert bench.text("grep", pattern="^77$", path=".agent/output-1.txt") == ".agent/output-1.txt:77:77"
    assert bench.text("grep", pattern="^77$") == "no matches", "searches of the workspace do not meet it"
    text = bench.text("run_terminal", TerminalConfig(max_chars=100), command="seq 1000")
    assert "all of it" not in text and "characters cut" in text, "a file that cannot be written is not named"


def test_a_command_in_the_background_is_read_later_and_can_be_stopped(bench: Any):
    output = bench.call("run_terminal", command="echo begun; sleep 60", background=True)
    assert output.text.startswith("started; its output is in .agent/job-1.txt") and output.ok
    assert output.data == {"status": "started", "job": ".agent/job-1"}
    stop = "until [ -s .agent/job-1.pid ]; do :; done; kill $(cat .agent/job-1.pid)"
    wait = "until grep -q '^exit' .agent/job-1.txt; do sleep 0.01; done"
    bench.text("run_terminal", command=f"until grep -q begun .agent/job-1.txt; do :; done; {stop}; {wait}")
    assert bench.text("read_file", path=".agent/job-1.txt") == "1: begun\n2: exit 143"
    bench.text("run_terminal", command="sleep 60", background=True, timeout=1)
    bench.text("run_terminal", command=wait.replace("job-1", "job-2"))
    assert bench.text("read_file", path=".agent/job-2.txt") == "1: exit 124"
    bench.script(ExecResult("exited", 0))
    assert "run it without" in bench.refusal("run_terminal", command="x", background=True)


def test_compact_output_leaves_out_what_says_nothing():
    assert compacted("\x1b[31mred\x1b[0m  \n\n\n.\n.\n.\n\x1b]0;title\x07end\n") == "red\n. (x3)\nend"


def test_the_compact_mode_is_a_setting(bench: Any):
    command = "echo a; echo; echo a"
    assert bench.text("run_terminal", command=command) == "a\n\na"
    assert bench.text("run_terminal", TerminalConfig(compact=True), command=command) == "a (x2)"


# --- read_lints


def test_read_lints_shows_ruff_findings_and_compile_errors(bench: Any):
    bench.file("pkg/a.py", "import os\n\ndef f():\n    return undefined\n")
    bench.file("pkg/b.py", "def f(:\n    pass\n")
    bench.file("pkg/c.py", "return 1\n")
    lines = bench.text("read_lints").split("\n")
    assert lines[0] == "pkg/a.py:1:8 F401 `os` imported but unused"
    assert lines[1].startswith("pkg/a.py:4:12 F821 ")
    assert lines[2].startswith("pkg/b.py:1:7 syntax ")
    assert lines[3].startswith("pkg/c.py:1:1 syntax 'return' outside function")
    assert len(lines) == 4


def test_read_lints_of_named_paths_only(bench: Any):
    bench.file("pkg/a.py", "import os\n")
    assert bench.text("read_lints", paths='["pkg/clamp.py"]') == "no lints"
    output = bench.call("read_lints", paths=["pkg"])
    assert output.text.startswith("pkg/a.py:1:8")
    assert output.data == {"lints": 1, "errors": 0, "linted": ["pkg"]}
    assert bench.refusal("read_lints", paths=["pkg/clam.py"]).startswith("no file or folder pkg/clam.py; did you")
    assert bench.text("read_lints", LintConfig(select="E9"), paths=["pkg"]) == "no lints"


def test_read_lints_runs_none_of_the_workspaces_code(bench: Any):
    spy = "open('ran', 'w').close()\n"
    for name in ("sitecustomize.py", "json.py", "ruff.py", "a.py", "warnings.py"):
        bench.file(name, spy)
    bench.text("read_lints")
    assert not (bench.root / "ran").exists()
    assert not list(bench.root.rglob("__pycache__")) and not list(bench.root.rglob(".ruff_cache"))


def test_read_lints_says_what_it_cut_and_why_it_failed(bench: Any):
    bench.file("a.py", "import os\nimport re\n")
    assert bench.text("read_lints", LintConfig(max_lints=1)).endswith("\n... 1 more")
    bench.file(".ruff.toml", "no = such\n")
    assert bench.refusal("read_lints").startswith("ruff failed: ")


# --- todo_write, finish


def test_todos_are_written_merged_and_kept_for_rewards(bench: Any):
    rows = '[{"id": "1", "content": "read"}, {"id": "2", "content": "fix", "status": "in_progress"}]'
    output = bench.call("todo_write", items=rows)
    assert output.text == "[ ] 1 read\n[~] 2 fix"
    assert output.data == {"open_todos": 2, "todos": 2, "statuses": {"1": "pending", "2": "in_progress"}}
    merged = bench.text(
        "todo_write", items=[{"id": "1", "status": "completed"}, {"id": "3", "content": "test"}], merge="true"
    )
    assert merged == "[x] 1 read\n[~] 2 fix\n[ ] 3 test"
    assert bench.state["todos"][0] == {"id": "1", "content": "read", "status": "completed"}
    assert bench.call("finish").data == {"message": "", "open_todos": 2}
    assert bench.text("todo_write", items=[]) == "no to-dos"


def test_the_statuses_are_told_however_a_call_was_spelled(bench: Any):
    rows = ['{"id": "1", "content": "read"}', '{"id": "2", "content": "fix"}']
    assert bench.call("todo_write", items=rows).data["statuses"] == {"1": "pending", "2": "pending"}
    merged = bench.call("todo_write", items='[{"id": "1", "status": "completed"}]', merge=" true")
    assert merged.data["statuses"] == {"1": "completed", "2": "pending"}


def test_todos_that_make_no_list_are_refused_and_change_nothing(bench: Any):
    bench.call("todo_write", items=[{"id": "1", "content": "read"}])
    assert "two to-dos" in bench.refusal("todo_write", items=[{"id": "1", "content": "a"}, {"id": "1", "content": "b"}])
    assert "no content" in bench.refusal("todo_write", items=[{"id": "2"}], merge=True)
    assert "one of pending" in bench.refusal("todo_write", items=[{"id": "2", "content": "a", "status": "open"}])
    assert [todo["id"] for todo in bench.state["todos"]] == ["1"]


def test_finish_shows_nothing_and_keeps_the_message(bench: Any):
    output = bench.call("finish", message="done")
    assert output == ToolOutput("", data={"message": "done", "open_todos": 0})
