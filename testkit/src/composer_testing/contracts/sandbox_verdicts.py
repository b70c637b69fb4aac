"""What a policy's command does to its own sandbox fails the episode and does not void it. Subclass `VerdictContract`:

class TestVerdicts(VerdictContract):
    spec = next(iter(composer_sandboxes()))

A void episode is tried again and counts for nothing, so whoever could make one void would have found a way out of
failing. Whole episodes are run: the command, one more after it, and the grading of what is left. For providers that
isolate and limit memory, processes and disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from attrs import evolve

from composer_core import ToolContext, ToolSpec
from composer_core.config import SandboxLimits
from composer_core.context import Plain
from composer_core.episode import run_episode
from composer_core.parts import EpisodeParts
from composer_core.protocols import BuildContext, OpenGrading, SandboxProvider
from composer_core.records import NoConfig, RewardSpec
from composer_core.sandbox import Sandboxes
from composer_core.scoring import Reward
from composer_core.toolbox import Tool, Toolbox
from composer_core.trees import Patch, Tree
from composer_core.types import Call, EpisodeRequest, Grading, GradingRef, Limits, Outcome, ParsedTurn, SlotKey, Trace
from composer_testing.contracts.sandbox_security import SecurityContract
from composer_testing.fakes.config import TasksConfig
from composer_testing.fakes.sampler import ScriptedSampler
from composer_testing.fakes.tasks import Sums
from composer_testing.fakes.text import ByteTokenizer, LineRenderer

TASKS = Sums(TasksConfig())
HIDDEN = Tree.of({"hidden/test.txt": "x" * 10_000})
LIMITS = SandboxLimits(memory_bytes=128 << 20, processes=24, file_bytes=1 << 20, disk_bytes=8 << 20)
BREAKING = {
    "memory": "exec python3 -S -c '[b\"x\" * n for n in range(10**6, 10**7)]'",
    "forks": "f() { f | f & f; }; f",
    "killing all in reach": "kill -9 1; kill -9 -1; kill -9 $PPID; exit 1",
    "full disk": """for size in a900000 b60000 c4096; do
        i=0; while head -c ${size#?} /dev/zero > $size.$i; do i=$((i+1)); done
    done; exit 1""",
    "rights taken away": "chmod -R 0 .; exit 1",
}


class VerdictContract(SecurityContract):
    """Name your subclass `Test...`; it holds `SecurityContract` too."""

    @pytest.mark.parametrize("breaking", BREAKING)
    def test_what_a_command_does_to_its_sandbox_fails_the_episode_and_does_not_void_it(self, breaking: str) -> None:
        trace: Trace = self.use(lambda provider: episode(provider, BREAKING[breaking], "echo once more"))
        assert trace.verdict.outcome is Outcome.FAILED, (trace.verdict, trace.faults)
        assert not trace.faults

    def test_an_episode_that_does_its_task_is_solved(self) -> None:
        trace: Trace = self.use(lambda provider: episode(provider, "kill -9 1; echo 7 > answer.txt"))
        assert trace.verdict.outcome is Outcome.SOLVED, (trace.verdict, trace.faults)


async def sh(context: ToolContext, script: str) -> str:
    """Run a script."""
    result = await context.sandbox.exec(["sh", "-c", script], timeout_s=3)
    return f"{result.status} {result.stdout.decode(errors='replace')}"


async def answered(patch: Patch, grading: OpenGrading) -> float:
    """Outcome: the answer was written, and is in the room where the patch is laid beside the hidden files."""
    async with grading() as room:
        applied = await room.apply(patch)
        assert await room.sandbox.read("hidden/test.txt") == HIDDEN.files[0].data
    return float(any(file.path == "answer.txt" for file in applied.writes))


async def episode(
    provider: SandboxProvider, *scripts: str, run: Callable[[ToolContext, str], Awaitable[str]] = sh
) -> Trace:
    """A policy that runs these, one in each turn, by the tool `run`, a function of the name `sh`."""
    renderer, task = LineRenderer(ByteTokenizer()), TASKS.tasks("train")[0]
    rows = [renderer.render(ParsedTurn("", (Call("", "sh", {"script": script}),))) for script in scripts]
    spec = ToolSpec.of(run, effect="exec")
    outcome = RewardSpec(name="answered", function=answered, outcome=True)
    parts = EpisodeParts(
        samplers={"policy": ScriptedSampler({task.id: rows})},
        renderer=renderer,
        toolbox=Toolbox({"sh": Tool.of("tests/sh", spec, run, None)}),
        sandboxes=Sandboxes(provider, "under/test", TASKS.tree, LIMITS),
        context=Plain(NoConfig(), BuildContext(Path())),
        rewards=(Reward("tests/answered", "1", outcome, answered, None, 1.0),),
        resolve_grading=lambda ref: Grading(HIDDEN, ("true",)),
    )
    view = evolve(task.view, limits=Limits(turns=len(scripts)))
    return await run_episode(EpisodeRequest(SlotKey(task.id, 0), "g", view, GradingRef("x", "y")), parts)
