"""Outcome reward: hidden tests in a fresh fork of the pristine workspace.

The room holds the template, the agent's patch outside protected paths, and the hidden files; the agent's own sandbox
is gone. 1 if every test of `Grading.names` passed, else 0; the share passed is a part for reports, never paid.

Who is to blame when nothing is reported? Code under test that exits, hangs, exhausts memory or disk, or destroys its
guest is the policy's doing and scores 0. A host that cannot run the command is not. Where the two look alike, a
control run without any patch decides: if that one reports, the patch was to blame; otherwise `GradingError` makes the
episode void.
"""

from __future__ import annotations

from collections.abc import Mapping

from composer_core.errors import GradingError, PathError, QuotaError, SandboxError
from composer_core.protocols import ExecResult, GradingRoom, OpenGrading
from composer_core.trees import Patch
from composer_core.types import Grading, Score
from composer_plugin_hidden_tests.reports import junit_path, passed_junit, passed_values, share

ID = "hidden-tests/hidden-tests"
VERSION = "0.1.0"
REPORT_BYTES = 4 << 20
POLICYS_DOING = ("timeout", "oom", "signaled")
"""Ways to end that need no control run."""

Passed = Mapping[str, bool] | None


async def hidden_tests(patch: Patch, grading: OpenGrading) -> Score:
    """Grade a patch.

    Raises:
        GradingError: the grader cannot run here, or the task's grading is not usable.
        SandboxError: no room could be opened.
    """
    status, passed = await _grade(patch, grading)
    if passed is None and status not in POLICYS_DOING:
        _, control = await _grade(Patch(), grading)
        if control is None:
            raise GradingError("the grading command reports nothing, even without a patch", who=ID, found=status)
    value = float(passed is not None and all(passed.values()))
    parts = {"passed_share": share(passed or {}), "reported": float(passed is not None)}
    return Score(ID, VERSION, value, parts, note="" if passed is not None else f"no report: {status}")


async def _grade(patch: Patch, grading: OpenGrading) -> tuple[str, Passed]:
    """How the command ended, and what it reported."""
    async with grading() as room:
        _usable(room.grading)
        try:
            await room.apply(patch)
            result = await room.run()
            return result.status, await _report(room, result)
        except (GradingError, SandboxError) as error:
            return f"lost, {error.message}", None


def _usable(grading: Grading) -> None:
    """A grading must name tests, and how they report."""
    if not grading.names:
        raise GradingError("a grading names no tests", who=ID, found=" ".join(grading.argv))
    if junit_path(grading) is None and set(grading.names) != set(grading.expected):
        raise GradingError(
            "a grading needs an expected value for each test, or --junitxml=PATH in its command",
            who=ID,
            found=f"{len(grading.expected)} values for {len(grading.names)} tests",
        )


async def _report(room: GradingRoom, result: ExecResult) -> Passed:
    path = junit_path(room.grading)
    if path is None:
        return passed_values(room.grading, result.stdout) if result.status == "exited" else None
    try:
        data: bytes = await room.sandbox.read(path)
    except (PathError, QuotaError):
        return None
    return passed_junit(room.grading, data) if len(data) <= REPORT_BYTES else None
