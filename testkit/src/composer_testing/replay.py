"""One scripted episode, to be played in every kind of sandbox: the trace is the same, byte for byte, but for durations.

What an agent reads must not depend on where it is served from, or a policy is trained in one world and used in another.
The script calls every tool of the `code` plugin, runs tests that fail and pass, and meets errors, limits, signals,
links and odd bytes. It says only what all images share: no version of an interpreter, no text of a shell's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from composer_core.trees import Tree
from composer_core.types import Grading, Limits, TaskView, Trace

CHECK = """
import sys
sys.path.insert(0, ".")
from shop.price import total
failed = [case for case, value in (([1, 2], 30), ([], 0)) if total(case) != value]
print("FAIL", *failed) if failed else print("ok 2")
print("1 failed" if failed else "", end="", file=sys.stderr)
sys.exit(bool(failed))
"""
WORKSPACE = Tree.of(
    {
        ".ruff.toml": 'lint.select = ["E9", "F"]\n',
        "README.md": "# Shop\n\nPrices in cents.\n",
        "check.py": CHECK,
        "data/odd.bin": b"\x00\xff\xfe",
        "data/latin.txt": b"caf\xe9\r\nna\xefve\r\n",
        "shop/__init__.py": "",
        "shop/price.py": "RATE = 9\n\n\ndef total(items):\n    return sum(RATE * item for item in items)\n",
    }
)
RUNNER = 'import sys\nsys.path.append(".")\nfrom shop.price import total\nprint("value 0", total([3]))\n'
GRADING = Grading(
    hidden=Tree.of({".grade/run.py": RUNNER}),
    argv=("python3", "-ISB", ".grade/run.py"),
    protected=(".grade/*", "check.py"),
    names=("three",),
    expected={"three": "30"},
)
LIMITS = Limits(turns=100, tokens=10**6, turn_tokens=10**5, context_tokens=10**6, wall_s=300.0, output_chars=600)
VIEW = TaskView("replay", "Repair shop/price.py", WORKSPACE.ref, limits=LIMITS, needs=("python3",))

PATCH = """*** Begin Patch
*** Update File: notes/deep/plan.md
*** Move to: notes/moved.md
@@ # Plan
-- žlutý
+- žluťoučký
 - kůň
*** Add File: notes/new.md
+new
*** End Patch"""

Calls = list[tuple[str, dict[str, Any]]]


def sh(command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "run_terminal", {"command": command, **more}


ENDED = "grep -qs ^exit .agent/job-1.txt"
FILES: list[Calls] = [
    [("list_dir", {}), ("list_dir", {"path": "shop"}), ("read_file", {"path": "README.md"})],
    [("read_file", {"path": "shop/prices.py"})],
    [("read_file", {"path": "data/odd.bin"}), ("read_file", {"path": "data/latin.txt"})],
    [("read_file", {"path": "/etc/passwd"}), ("list_dir", {"path": "../.."}), ("list_dir", {"path": "nowhere"})],
    [("todo_write", {"items": [{"id": "1", "content": "find"}, {"id": "2", "content": "repair"}]})],
    [("edit_file", {"path": "data/latin.txt", "old": "na", "new": "gna"})],
    [("edit_file", {"path": "shop/price.py", "old": "item", "new": "x"})],
    [("write_file", {"path": "notes/deep/plan.md", "content": "# Plan\n\n- žluť\n"})],
    [("write_file", {"path": "shop", "content": "x"})],
    [("write_file", {"path": "shop/price.py/x", "content": "x"})],
    [("no_such_tool", {}), ("read_file", {"file": "README.md"})],
    [("list_dir", {"path": "notes/deep"}), ("read_file", {"path": "notes/deep/plan.md", "offset": 3, "limit": 1})],
    [("edit_lines", {"path": "notes/deep/plan.md", "first": 3, "last": 3, "text": "- žlutý\n- kůň"})],
    [("edit_lines", {"path": "notes/deep/plan.md", "first": 1, "last": 1, "text": ""})],
    [("apply_patch", {"patch": PATCH}), ("apply_patch", {"patch": PATCH})],
    [("delete_file", {"path": "notes/moved.md"}), ("delete_file", {"path": "shopp/price.py"})],
    [("semantic_search", {"query": "prices"}), ("web_search", {"query": "prices"})],
]
"""Turns that need no command, so a sandbox in memory can play them too."""
COMMANDS: list[Calls] = [
    [sh("python3 -ISB check.py")],
    [("grep", {"pattern": "RATE"}), ("grep", {"pattern": "rate", "ignore_case": True, "include": "*.py"})],
    [("grep", {"pattern": "nothing at all"}), ("grep", {"pattern": "total", "path": "shop"})],
    [("grep", {"pattern": "RATE", "mode": "counts"}), ("grep", {"pattern": "items", "around": 1, "limit": 2})],
    [("glob", {"pattern": "*.py"}), ("glob", {"pattern": "**/*.md", "path": "notes"}), ("glob", {"pattern": "*.rs"})],
    [("read_lints", {})],
    [("write_file", {"path": "shop/extra.py", "content": "import os\n\n\ndef f():\n    return unknown\n"})],
    [("read_lints", {"paths": ["shop"]}), ("read_lints", {"paths": ["missing.py"]})],
    [sh("pwd; id -u; umask; cat /proc/sys/kernel/hostname; echo $HOME $LANG $TMPDIR")],
    [sh("ls -1AF . shop notes; stat -c '%a %s %n' shop/* notes notes/new.md check.py")],
    [sh("env | cut -d= -f1 | grep -v '^_$' | sort")],
    [sh("printf 'b\\na\\nB\\nA\\nä\\n' | sort; printf '\\377\\n'; echo err >&2; exit 3")],
    [sh("cat missing; echo $?; no-such-command 2>/dev/null; echo $?; ./README.md 2>/dev/null; echo $?")],
    [sh("kill -9 $$"), sh("sleep 9", timeout=1), sh("seq 900"), sh("head -c 3000000 /dev/zero | wc -c")],
    [sh("sleep 60 & echo started")],
    [("read_file", {"path": ".agent/output-1.txt", "offset": 450, "limit": 2})],
    [sh("echo begun; exit 4", background=True), sh(f"until {ENDED}; do sleep 0.01; done", timeout=5)],
    [("read_file", {"path": ".agent/job-1.txt"})],
    [sh("ln -s README.md link; mkfifo pipe; mkdir -p tmp; mv data/odd.bin tmp; chmod +x check.py; ls -1F")],
    [sh("touch -d @0 README.md; date -u -r README.md; date +%Z; test -t 0 || echo no terminal; cat")],
    [sh("python3 -ISB -c 'import os, sys; print(sorted(os.listdir()), sys.flags.isolated, os.getuid())'")],
    [("edit_file", {"path": "shop/price.py", "old": "RATE = 9", "new": "RATE = 10"})],
    [sh("python3 -ISB check.py"), sh("rm -r shop/extra.py tmp link pipe")],
]
END: list[Calls] = [
    [("todo_write", {"items": [{"id": "1", "status": "completed"}], "merge": True})],
    [("read_file", {"path": "shop/price.py"})],
    [("finish", {"message": "repaired"})],
]


def without_durations(trace: Trace) -> Trace:
    """The filter: every number that is a time in seconds, which is what a name ending in `_s` says, becomes 0.

    They stand in `stats`, in turns (`generate_s`) and in results (`wall_s`). Nothing else is touched.
    """
    turns = [
        evolve(turn, generate_s=0.0, results=tuple(evolve(result, wall_s=0.0) for result in turn.results))
        for turn in trace.turns
    ]
    stats: Mapping[str, float] = {name: 0.0 if name.endswith("_s") else value for name, value in trace.stats.items()}
    return evolve(trace, turns=tuple(turns), stats=stats)
