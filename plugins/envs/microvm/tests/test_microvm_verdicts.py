"""A machine broken by what the policy ran in it is the policy's doing: the episode failed, and is not void."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest
from attrs import evolve
from machines import new_provider

from composer_core import ToolContext, ToolSpec
from composer_core.config import SandboxLimits
from composer_core.context import Plain
from composer_core.episode import run_episode
from composer_core.parts import EpisodeParts
from composer_core.protocols import BuildContext
from composer_core.records import NoConfig, RewardSpec
from composer_core.sandbox import Sandboxes
from composer_core.scoring import Reward
from composer_core.toolbox import Tool, Toolbox
from composer_core.trees import Patch
from composer_core.types import Call, EpisodeRequest, GradingRef, Limits, Outcome, ParsedTurn, SlotKey, Trace
from composer_testing.fakes.config import TasksConfig
from composer_testing.fakes.sampler import ScriptedSampler
from composer_testing.fakes.tasks import Sums
from composer_testing.fakes.text import ByteTokenizer, LineRenderer

RENDERER = LineRenderer(ByteTokenizer())
TASKS = Sums(TasksConfig())
LIMITS = SandboxLimits(memory_bytes=128 << 20, processes=24, file_bytes=1 << 20, disk_bytes=8 << 20)


async def sh(context: ToolContext, script: str) -> str:
    """Run a script."""
    result = await context.sandbox.exec(["sh", "-c", script], timeout_s=3)
    return f"{result.status} {result.stdout.decode()}"


async def end_the_agent(context: ToolContext) -> str:
    """What a workload that has become root could do: process 1 is gone, the kernel with it."""
    channel = context.sandbox.backend.machine.channel
    channel._transport.write(struct.pack("!II", 0xFFFFFFFF, 0))
    return await sh(context, "sleep 3")


async def answered(patch: Patch) -> float:
    """Outcome: the answer was written."""
    return float(any(file.path == "answer.txt" for file in patch.writes))


def episode(*calls: Call) -> Trace:
    async def whole() -> Trace:
        provider = new_provider()
        task = TASKS.tasks("train")[0]
        specs = [ToolSpec.of(sh, effect="exec"), ToolSpec.of(end_the_agent, effect="exec")]
        box = Toolbox({spec.name: Tool.of(f"tests/{spec.name}", spec, spec.function, None) for spec in specs})
        reward = RewardSpec(name="answered", function=answered, outcome=True)
        rows = [RENDERER.render(ParsedTurn("", (call,))) for call in calls]
        parts = EpisodeParts(
            samplers={"policy": ScriptedSampler({task.id: rows})},
            renderer=RENDERER,
            toolbox=box,
            sandboxes=Sandboxes(provider, "microvm/qemu", TASKS.tree, LIMITS),
            context=Plain(NoConfig(), BuildContext(None)),
            rewards=(Reward("tests/answered", "1", reward, answered, None, 1.0),),
            resolve_grading=TASKS.grading,
        )
        view = evolve(task.view, limits=Limits(turns=len(calls)))
        try:
            return await run_episode(EpisodeRequest(SlotKey(task.id, 0), "g", view, GradingRef("x", "y")), parts)
        finally:
            await parts.sandboxes.close()

    return asyncio.run(whole())


def script(text: str) -> Call:
    return Call("c0", "sh", json.loads(json.dumps({"script": text})))


def said(trace: Trace) -> str:
    return "\n".join(result.text for turn in trace.turns for result in turn.results)


@pytest.mark.parametrize(
    ("breaking", "told"),
    [
        (script("exec python3 -c '[b\"x\" * n for n in range(10**6, 10**7)]'"), "oom"),
        (script("f() { f | f & f; }; f"), ""),
        (script("kill -9 1; kill -9 -1; kill -9 $PPID; exit 1"), ""),
        (script("i=0; while head -c 900000 /dev/zero > f$i; do i=$((i+1)); done; exit 1"), "exited"),
        (Call("c0", "end_the_agent", {}), "lost"),
    ],
    ids=["memory", "forks", "killing the agent", "full disk", "agent gone"],
)
def test_what_a_command_does_to_its_machine_fails_the_episode_and_does_not_void_it(breaking: Call, told: str) -> None:
    trace = episode(breaking, script("echo once more"))
    assert trace.verdict.outcome is Outcome.FAILED, (trace.verdict, trace.faults)
    assert told in said(trace) and not trace.faults


def test_an_episode_that_does_its_task_is_solved() -> None:
    trace = episode(script("kill -9 1; echo 7 > answer.txt"))
    assert trace.verdict.outcome is Outcome.SOLVED, (said(trace), trace.faults)
