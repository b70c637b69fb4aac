"""The outcome reward: right answers are paid, nothing else is, and only the host's failures void an episode."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attrs import Factory, evolve, frozen

from composer_core.errors import GradingError, NoCapacity, SandboxGone
from composer_core.protocols import ExecResult, OpenGrading
from composer_core.records import RewardSpec
from composer_core.trees import File, Patch, Tree
from composer_core.types import Grading, Score
from composer_plugin_hidden_tests.plugin import composer_rewards
from composer_plugin_hidden_tests.reports import passed_junit, passed_values
from composer_plugin_hidden_tests.reward import hidden_tests
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.rooms import folder_rooms

RUNNER = """
import sys
sys.path.append(".")
from package import double
print("noise")
print("value 0", double(2))
print("value 1", double(-1))
"""
PRISTINE = Tree.of({"package.py": "def double(n):\n    return n\n"})
GRADING = Grading(
    hidden=Tree.of({".grade/run.py": RUNNER}),
    argv=("python3", "-ISB", ".grade/run.py"),
    protected=(".grade/*", "test*", "*conftest.py", "*.ini"),
    names=("two", "minus one"),
    expected={"two": "4", "minus one": "-2"},
    timeout_s=5.0,
)
PYTEST = Grading(
    hidden=Tree.of(
        {"tests/test_double.py": "from package import double\n\n\ndef test_two():\n    assert double(2) == 4\n"}
    ),
    argv=("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "--junitxml=.r-5f2c.xml", "tests"),
    protected=GRADING.protected,
    names=("tests/test_double.py::test_two",),
    timeout_s=30.0,
)


def writes(text: str, path: str = "package.py") -> Patch:
    return Patch((File(path, text.encode()),))


GOLD = writes("def double(n):\n    return n * 2\n")


class TestHiddenTestsContract(RewardContract):
    def build(self) -> RewardSpec:
        (spec,) = composer_rewards()
        return spec

    def situations(self) -> Mapping[str, Situation]:
        rooms = folder_rooms(PRISTINE, GRADING)
        return {
            "gold": Situation({"patch": GOLD, "grading": rooms}, 1.0),
            "nothing": Situation({"patch": Patch(), "grading": rooms}, 0.0),
            "half": Situation({"patch": writes("def double(n):\n    return 4\n"), "grading": rooms}, 0.0),
        }


def score(patch: Patch, grading: Grading = GRADING) -> Score:
    return asyncio.run(hidden_tests(patch, folder_rooms(PRISTINE, grading)))


def test_the_share_passed_is_reported_and_not_paid() -> None:
    found = score(writes("def double(n):\n    return 4\n"))
    assert (found.value, found.parts["passed_share"]) == (0.0, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "raise SystemError",
        "def double(n:",
        "import os; os.write(1, b'value 0 1\\nvalue 1 1\\n'); os._exit(0)",
        "import atexit, os; atexit.register(lambda: os.write(1, b'value 0 9\\n'))\ndef double(n): return n",
        "import os; os.close(1); os.close(2)\ndef double(n): return n",
    ],
)
def test_what_the_code_under_test_breaks_is_failed_and_not_void(text: str) -> None:
    assert score(writes(text)).value == 0.0


def test_a_hang_is_failed() -> None:
    found = score(writes("import time; time.sleep(60)"), evolve(GRADING, timeout_s=0.5))
    assert (found.value, found.note) == (0.0, "no report: timeout")


def test_protected_and_hidden_files_are_not_the_agents() -> None:
    planted = writes("print('value 0 4\\nvalue 1 -2')", ".grade/run.py")
    assert score(planted).value == 0.0
    assert score(Patch((*planted.writes, *GOLD.writes))).value == 1.0


def test_a_command_that_cannot_run_is_void() -> None:
    with pytest.raises(GradingError, match="even without a patch"):
        score(GOLD, evolve(GRADING, argv=("python3", "-ISB", "missing.py")))


@pytest.mark.parametrize("change", [{"names": ()}, {"expected": {}}, {"expected": {"two": "4"}}])
def test_a_grading_that_cannot_judge_is_void(change: dict[str, Any]) -> None:
    with pytest.raises(GradingError):
        score(GOLD, evolve(GRADING, **change))


@frozen
class Lost:
    """A room whose guest dies while code of the agent's runs in it; `always` also without that code."""

    grading: Grading
    always: bool = False
    when_laid: bool = False
    applied: list[Patch] = Factory(list)

    async def apply(self, patch: Patch) -> Patch:
        self.applied.append(patch)
        if patch and self.when_laid:
            raise GradingError("the hidden files could not be written: the disk is full")
        return patch

    async def run(self) -> ExecResult:
        if self.applied[-1] or self.always:
            raise SandboxGone("the guest is gone")
        return ExecResult("exited", 0, b"value 0 2\n")

    @property
    def sandbox(self) -> None:
        return None


def opening(room: Any) -> OpenGrading:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield room

    return opened


def test_a_guest_destroyed_by_the_patch_is_failed_and_by_the_host_void() -> None:
    assert asyncio.run(hidden_tests(GOLD, opening(Lost(GRADING)))).value == 0.0
    assert asyncio.run(hidden_tests(GOLD, opening(Lost(GRADING, when_laid=True)))).value == 0.0
    with pytest.raises(GradingError):
        asyncio.run(hidden_tests(GOLD, opening(Lost(GRADING, always=True))))


def test_no_room_is_void() -> None:
    def full() -> Any:
        raise NoCapacity("no room now")

    with pytest.raises(NoCapacity):
        asyncio.run(hidden_tests(GOLD, full))


def test_pytest_judges_where_a_task_names_it() -> None:
    assert score(GOLD, PYTEST).value == 1.0
    assert score(Patch(), PYTEST).value == 0.0
    assert score(writes("import os; os._exit(0)"), PYTEST).value == 0.0
    assert score(writes("[pytest]\naddopts = --collect-only\n", "pytest.ini"), PYTEST).value == 0.0


JUNIT = (
    b'<testsuites><testsuite><testcase classname="tests.test_a.TestB" name="test_c[x.y]"/>%s</testsuite></testsuites>'
)
NODE = "tests/test_a.py::TestB::test_c[x.y]"


@pytest.mark.parametrize(
    ("data", "passed"),
    [
        (JUNIT % b"", {NODE: True}),
        (JUNIT % b'<testcase classname="tests.test_a.TestB" name="test_c[x.y]"><failure/></testcase>', {NODE: False}),
        (JUNIT.replace(b"test_c", b"test_d") % b"", {NODE: False}),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]>" + JUNIT % b"", None),
        (b"\xff\xfe not xml", None),
        (b"", None),
    ],
    ids=["passed", "failed-later", "another", "document-type", "binary", "empty"],
)
def test_junit_reports(data: bytes, passed: Any) -> None:
    assert passed_junit(evolve(PYTEST, names=(NODE,)), data) == passed


@pytest.mark.parametrize(
    ("stdout", "passed"),
    [
        (b"value 0 4\nvalue 1 -2\n", [True, True]),
        (b"value 0 4\nvalue 1 -2 \n", [True, False]),
        (b"value 0 5\nvalue 0 4\n", [True, False]),
        (b"value 0 4\nvalue 0 5\nvalue 1 -2", [False, True]),
        (b"x value 0 4\nvalue 99 4\nvalue -1 4\n\xff\xfe\n", [False, False]),
        (b"ok 2\n", None),
    ],
)
def test_value_reports(stdout: bytes, passed: list[bool] | None) -> None:
    found = passed_values(GRADING, stdout)
    assert (None if found is None else list(found.values())) == passed
