"""A drill's workspace and its grading room, as trees.

The workspace is a small package made for short contexts: the function with the bug and a few siblings of its module,
one function per file, the visible tests, and `check.py`. The grading room adds `.grade/`: a runner that knows the
hidden expressions; their values stay with the grader (`Grading.expected`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from composer_core.noise import key_of, shuffled
from composer_core.trees import Tree
from composer_core.types import Grading
from composer_plugin_drills.catalog import Function, siblings
from composer_plugin_drills.drills import Drill

COMMAND = "python3 -ISB check.py"
"""How an agent runs the visible tests."""
PROTECTED = (
    "tests/*",
    "check.py",
    ".grade",
    ".grade/*",
    "*.pth",
    "*.pyc",
    "*.so",
    "*__pycache__*",
    "*conftest.py",
    "*sitecustomize*",
    "*usercustomize*",
    "*pyvenv.cfg",
    "pytest.ini",
    "setup.cfg",
    "tox.ini",
    "pyproject.toml",
)
"""Changes of these never reach the grading room."""
SIBLINGS = 3
SIBLING_CHECKS = 2
"""Hidden checks of each sibling, which must go on passing."""
TIMEOUT_S = 10.0
_INROOM = Path(__file__).parent / "inroom"
_CHECK = (_INROOM / "check.py").read_bytes()
_RUNNER = (_INROOM / "run.py").read_text()


def company(drill: Drill) -> list[Function]:
    """The siblings that share the workspace, by a draw that depends on the drill alone."""
    others = [one for one in siblings(drill.function.module) if one.name != drill.function.name]
    order = shuffled(list(range(len(others))), key_of("siblings", drill.id))
    return [others[index] for index in order[:SIBLINGS]]


@cache
def workspace(drill: Drill) -> Tree:
    """What the agent finds."""
    present = [drill.function, *company(drill)]
    texts = {one.path: one.text for one in present} | {drill.path: drill.buggy}
    tests = {f"tests/test_{one.name}.py": test_file(one) for one in present}
    return Tree.of({f"{drill.function.module}/__init__.py": "", "check.py": _CHECK, **texts, **tests})


def test_file(function: Function) -> str:
    """The visible checks as a test file that pytest would run too."""
    lines = [f"from {function.module}.{function.name} import {function.name}", "", "", f"def test_{function.name}():"]
    lines += [f"    assert {one.expression} == {one.literal}" for one in function.visible]
    return "\n".join(lines) + "\n"


def grading(drill: Drill) -> Grading:
    """The hidden part: expressions go into the room, expected values do not."""
    asked = [(drill.function, one) for one in drill.function.hidden]
    asked += [(other, one) for other in company(drill) for one in other.hidden[:SIBLING_CHECKS]]
    cases = [f"{function.module}\t{function.name}\t{one.expression}" for function, one in asked]
    return Grading(
        hidden=Tree.of({".grade/run.py": _RUNNER, ".grade/cases.txt": "\n".join(cases) + "\n"}),
        argv=("python3", "-ISB", ".grade/run.py"),
        protected=PROTECTED,
        names=tuple(one.expression for _, one in asked),
        timeout_s=TIMEOUT_S,
        expected={one.expression: one.value for _, one in asked},
    )


def failure_lines(functions: Sequence[Function]) -> list[str]:
    """Lines that `check.py` may print for these functions; for the tokenizer's vocabulary."""
    return [f"FAIL {one.expression} == {one.literal} got None" for function in functions for one in function.visible]
