"""Hook module: rewards that shape how an agent works, and a monitor of what they do.

The weights are our own: none are published. Their sum of |weight| x (high - low) is 0.65, so that all of them can be
listed beside an outcome of weight 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from composer_core import Footprint, Problem, RewardSpec, RunView, TrackerSpec, hookimpl
from composer_plugin_behavior import config

COMPOSER_API = 1
COST = (-1.0, 0.0)


@hookimpl
def composer_rewards() -> Iterable[RewardSpec]:
    """Costs in [-1, 0], bonuses in [0, 1]; all of a group's scope but `claims`, see `gate`."""
    yield RewardSpec(
        name="effort",
        summary="the nonlinear price of tokens, calls and turns",
        function="composer_plugin_behavior.effort:effort",
        config=config.EffortConfig,
        scope="group",
        range=COST,
        weight=0.1,
    )
    yield RewardSpec(
        name="parallelism",
        summary="independent reads that stand in one turn",
        function="composer_plugin_behavior.parallelism:parallelism",
        config=config.ParallelismConfig,
        scope="group",
        range=(0.0, 1.0),
        weight=0.05,
    )
    yield RewardSpec(
        name="broken_calls",
        summary="calls that could not be executed",
        function="composer_plugin_behavior.broken_calls:broken_calls",
        config=config.BrokenCallsConfig,
        capabilities={"reward.hints"},
        scope="group",
        range=COST,
        weight=0.1,
    )
    yield RewardSpec(
        name="todos",
        summary="to-dos that were opened and left open or dropped",
        function="composer_plugin_behavior.todos:todos",
        scope="group",
        range=COST,
        weight=0.05,
    )
    yield RewardSpec(
        name="evidence",
        summary="changes of files that were never read or found",
        function="composer_plugin_behavior.evidence:evidence",
        config=config.EvidenceConfig,
        scope="group",
        range=COST,
        weight=0.05,
    )
    yield RewardSpec(
        name="lints",
        summary="new diagnostics less mended ones, and suppressions, in touched Python files",
        function="composer_plugin_behavior.lints:lints",
        config=config.LintsConfig,
        scope="group",
        range=COST,
        weight=0.05,
    )
    yield RewardSpec(
        name="claims",
        summary="claims of the final message that the log of turns does not back",
        function="composer_plugin_behavior.claims:claims",
        config=config.ClaimsConfig,
        range=COST,
        weight=0.1,
    )
    yield RewardSpec(
        name="diff",
        summary="size against the group's median, stray files, reasoning in comments",
        function="composer_plugin_behavior.diff:diff",
        config=config.DiffConfig,
        scope="group",
        range=COST,
        weight=0.05,
    )
    yield RewardSpec(
        name="terminal_only",
        summary="everything done in the shell",
        function="composer_plugin_behavior.terminal_only:terminal_only",
        config=config.TerminalOnlyConfig,
        scope="group",
        range=COST,
        weight=0.05,
    )
    yield RewardSpec(
        name="rubric",
        summary="one question about the work, answered by a judge behind an OpenAI-compatible endpoint",
        function="composer_plugin_behavior.rubric:rubric",
        config=config.RubricConfig,
        scope="group",
        range=(0.0, 1.0),
        weight=0.05,
    )


@hookimpl
def composer_trackers() -> Iterable[TrackerSpec]:
    """The monitor keeps two windows of steps and writes nothing of its own."""
    yield TrackerSpec(
        name="monitor",
        summary="flags a part of the reward that does not move with the outcome",
        factory="composer_plugin_behavior.monitor:Monitor",
        config=config.MonitorConfig,
        footprint=Footprint(),
    )


@hookimpl
def composer_check(run: RunView) -> Iterable[Problem]:
    """A judge's key is there before the first group is judged."""
    for at, (_, chosen) in enumerate(run.settings.get("rewards", ())):
        name = chosen.key_env if isinstance(chosen, config.RubricConfig) else ""
        if name and not os.environ.get(name):
            fix = f"export {name}=..., or leave key_env out"
            yield Problem(f"rewards[{at}].key_env", f"the judge's key is not set: no variable {name}", fix)
