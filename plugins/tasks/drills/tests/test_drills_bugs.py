"""Drills are real: bugs are derived again, run for real, graded for real; the visible runner survives broken code."""

import asyncio
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from composer_core.trees import File, Patch
from composer_core.types import Score
from composer_envkit import lay
from composer_plugin_drills.build import build, derive
from composer_plugin_drills.catalog import body, functions, siblings
from composer_plugin_drills.demonstrator import STUB
from composer_plugin_drills.drills import INDEX, Drill, drills, dump
from composer_plugin_drills.exploits import ATTEMPTS
from composer_plugin_drills.inroom.run import canonical
from composer_plugin_drills.tasks import DrillSet
from composer_plugin_drills.validate import MEMORY_BYTES, Outcome, outcomes
from composer_plugin_drills.workspace import workspace
from composer_plugin_hidden_tests.reward import hidden_tests
from composer_testing.fakes.rooms import folder_rooms

SAMPLE = list(drills().values())[::150]


def score(drill: Drill, patch: Patch) -> Score:
    tasks = DrillSet()
    task = tasks.task(drill.id)
    rooms = folder_rooms(tasks.tree(task.view.workspace), tasks.grading(task.grading))
    return asyncio.run(hidden_tests(patch, rooms))


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-ISB", "check.py"]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, env={}, timeout=20, check=False)


def test_the_index_is_what_the_library_gives() -> None:
    assert INDEX.read_text() == dump(build(derive()))


def test_correct_functions_pass_and_every_bug_is_noticed() -> None:
    known = list(functions().values())
    assert all(one.correct for one in outcomes((function, function.text) for function in known))
    every = list(drills().values())
    bugs = list(outcomes((drill.function, drill.buggy) for drill in every))
    assert all(one.bug for one in bugs)
    assert [(one.visible_failed, one.hidden_failed) for one in bugs] == [
        (drill.visible_failed, drill.hidden_failed) for drill in every
    ]


def test_memory_of_the_process_that_asks_is_not_the_mutants() -> None:
    some = list(drills().values())[:400]
    with mmap.mmap(-1, MEMORY_BYTES):  # address space alone: no page of it is touched
        assert all(one.bug for one in outcomes((drill.function, drill.buggy) for drill in some))


@pytest.mark.parametrize(
    "text",
    ["def is_prime(n):\n    while True:\n        pass\n", "def is_prime(n:\n", "def other():\n    pass\n"],
    ids=["loops", "does-not-parse", "is-missing"],
)
def test_a_broken_mutant_is_no_bug(text: str) -> None:
    assert list(outcomes([(functions()["numbers_", "is_prime"], text)])) == [Outcome(broken=True)]


@pytest.mark.parametrize("drill", SAMPLE, ids=lambda drill: drill.id)
def test_repair_scores_1_and_doing_nothing_or_a_stub_0(drill: Drill) -> None:
    stub = File(drill.path, drill.buggy.replace(body(drill.buggy), STUB).encode())
    assert score(drill, DrillSet().gold(drill.id)).value == 1.0
    assert score(drill, Patch()).value == 0.0
    assert score(drill, Patch((stub,))).value == 0.0


def test_breaking_a_sibling_scores_0() -> None:
    drill = SAMPLE[0]
    gold = DrillSet().gold(drill.id)
    others = [one for one in siblings(drill.function.module) if one.name != drill.function.name]
    broken = tuple(File(one.path, f"def {one.name}(*args):\n    return None\n".encode()) for one in others)
    assert score(drill, Patch((*gold.writes, *broken))).value == 0.0


@pytest.mark.parametrize("name", ATTEMPTS)
def test_no_attempt_to_cheat_is_paid(name: str) -> None:
    for drill in SAMPLE[::5]:
        assert score(drill, DrillSet().exploits(drill.id)[name]).value == 0.0


def test_answers_that_are_all_alike_do_not_exist() -> None:
    for drill in drills().values():
        task = DrillSet().task(drill.id)
        assert len(set(DrillSet().grading(task.grading).expected.values())) > 1


@pytest.mark.parametrize("drill", SAMPLE, ids=lambda drill: drill.id)
def test_check_reports_the_bug_in_three_lines_and_its_repair_in_one(drill: Drill, tmp_path: Path) -> None:
    lay(workspace(drill), tmp_path)
    found = check(tmp_path)
    lines = found.stdout.splitlines()
    assert found.returncode == 1
    assert 2 <= len(lines) <= 3
    assert lines[0].startswith(f"FAIL {drill.function.name}(") or drill.function.name in lines[0]
    assert lines[-1].startswith(f"failed {drill.visible_failed} of ")
    lay(DrillSet().gold(drill.id).apply(workspace(drill)), tmp_path)
    fixed = check(tmp_path)
    assert (fixed.returncode, fixed.stdout[:3], fixed.stderr) == (0, "ok ", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("def {name}(", "SyntaxError"),
        ("def {name}(*args):\n    while True:\n        pass\n", "got TimedOut"),
        ("def {name}(*args):\n    raise KeyError(1)\n", "got KeyError"),
        ("import sys\nsys.exit(0)\n", "SystemExit"),
        ("import sys\n\ndef {name}(*args):\n    sys.exit(0)\n", "got SystemExit"),
        ("def other():\n    pass\n", "ImportError"),
    ],
    ids=["does-not-parse", "loops", "raises", "exits", "exits-when-called", "is-missing"],
)
def test_check_survives_broken_code(text: str, shown: str, tmp_path: Path) -> None:
    drill = SAMPLE[0]
    lay(workspace(drill), tmp_path)
    (tmp_path / drill.path).write_text(text.replace("{name}", drill.function.name))
    found = check(tmp_path)
    assert found.returncode == 1
    assert shown in found.stdout
    assert len(found.stdout.splitlines()) <= 3
    assert len(found.stdout) < 400


def test_canonical_text_is_strict_about_types_and_not_about_order() -> None:
    different = [1, True, 1.5, "1", b"1", None, [1], (1,), {1}, frozenset({1}), {1: 1}, [[1]], [True], 2.0, 2]
    assert len({canonical(value) for value in different}) == len(different)
    assert canonical({"b": 1, "a": {2, 10}}) == canonical({"a": {10, 2}, "b": 1})
    assert canonical(-0.0) == canonical(0.0)
    assert canonical(object()) == "?object"
