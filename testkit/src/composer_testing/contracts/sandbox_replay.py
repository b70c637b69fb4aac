"""A scripted episode gives the same trace in your sandboxes as in ours. Subclass `ReplayContract` and name the record:

class TestReplay(ReplayContract):
    spec = next(iter(composer_sandboxes()))

It takes `sh`, coreutils, `python3`, `rg` and `ruff` in the sandbox, and the plugins `code` and `hidden-tests` here.
Providers whose commands are not processes set `commands = False` and play what takes none. Plain processes are exempt:
their workspace has another path and their commands are another user's.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import importlib
from pathlib import Path
from typing import ClassVar

from composer_core.config import SandboxLimits
from composer_core.context import Plain
from composer_core.episode import run_episode
from composer_core.parts import EpisodeParts
from composer_core.protocols import BuildContext, SandboxProvider
from composer_core.records import NoConfig, RewardSpec, resolve
from composer_core.sandbox import Sandboxes
from composer_core.scoring import Reward
from composer_core.toolbox import Tool, Toolbox
from composer_core.traces import encode, readable
from composer_core.types import Call, EpisodeRequest, GradingRef, ParsedTurn, SlotKey, Trace
from composer_testing.fakes.sampler import ScriptedSampler
from composer_testing.fakes.text import ByteTokenizer, LineRenderer
from composer_testing.replay import COMMANDS, END, FILES, GRADING, VIEW, WORKSPACE, without_durations
from composer_testing.sandbox_suite import SandboxSuite

TOOLS = "composer_plugin_code.plugin"
REWARD = "composer_plugin_hidden_tests.reward:hidden_tests"
LIMITS = SandboxLimits(memory_bytes=256 << 20, processes=32, file_bytes=1 << 20, disk_bytes=8 << 20)
KEPT = Path(__file__).resolve().parent.parent / "replayed"
"""What the episode gave when it was recorded: the trace as a page to read, and the digest of its bytes."""


class ReplayContract(SandboxSuite):
    """Name your subclass `Test...`."""

    longest_s = 300.0
    """An emulated machine that shares its processor takes a minute for the whole episode."""
    commands: ClassVar[bool] = True
    """Whether commands are processes."""

    def test_the_episode_gives_the_recorded_trace_byte_for_byte_and_the_same_reward(self) -> None:
        name = "whole" if self.commands else "files"
        trace: Trace = self.use(lambda provider: played(provider, self.commands))
        data, page = encode(without_durations(trace)), readable(without_durations(trace))
        known = (KEPT / f"{name}.txt").read_text(encoding="utf-8")
        differing = "\n".join(difflib.unified_diff(known.split("\n"), page.split("\n"), "recorded", "played", n=1))
        assert not differing, differing
        assert hashlib.sha256(data).hexdigest() == (KEPT / f"{name}.sha256").read_text().strip()
        assert not trace.faults
        assert trace.stats.get("reward") == (1.0 if self.commands else None)


async def played(provider: SandboxProvider, commands: bool) -> Trace:
    """The episode's trace, durations included."""
    renderer = LineRenderer(ByteTokenizer())
    script = [*FILES, *(COMMANDS if commands else []), *END]
    turns = [ParsedTurn("", tuple(Call("", name, given) for name, given in calls)) for calls in script]
    specs = importlib.import_module(TOOLS).composer_tools()
    tools = [Tool.of(f"code/{spec.name}", spec, spec.function, spec.config()) for spec in specs]
    outcome = RewardSpec(name="hidden-tests", function=REWARD, outcome=True)
    reward = Reward("hidden-tests/hidden-tests", "1", outcome, resolve(REWARD), None, 1.0)
    parts = EpisodeParts(
        samplers={"policy": ScriptedSampler({VIEW.id: [renderer.render(turn) for turn in turns]})},
        renderer=renderer,
        toolbox=Toolbox({tool.spec.name: tool for tool in tools}),
        sandboxes=Sandboxes(provider, "under/test", lambda ref: WORKSPACE, LIMITS),
        context=Plain(NoConfig(), BuildContext(Path())),
        rewards=(reward,) if commands else (),
        resolve_grading=lambda ref: GRADING,
    )
    request = EpisodeRequest(SlotKey(VIEW.id, 0), "g", VIEW, GradingRef("under/test", VIEW.id), graded=commands)
    return await run_episode(request, parts)


def record(provider: SandboxProvider, commands: bool) -> None:
    """Write anew what is known; for whoever changes the script or a tool, who then reads the difference."""
    trace = without_durations(asyncio.run(played(provider, commands)))
    KEPT.mkdir(exist_ok=True)
    name = "whole" if commands else "files"
    (KEPT / f"{name}.txt").write_text(readable(trace), encoding="utf-8")
    (KEPT / f"{name}.sha256").write_text(hashlib.sha256(encode(trace)).hexdigest() + "\n")
