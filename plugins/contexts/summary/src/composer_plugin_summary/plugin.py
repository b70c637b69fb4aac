"""Hook module: three contexts, a probe, and what `check` proves of them."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import ContextSpec, Problem, RewardSpec, RunView, hookimpl
from composer_plugin_summary.check import problems
from composer_plugin_summary.config import ProbeConfig, PromptedConfig, SummaryConfig, TruncateConfig

COMPOSER_API = 1


@hookimpl
def composer_contexts() -> Iterable[ContextSpec]:
    yield ContextSpec(
        name="self",
        summary="at a count of tokens the policy sums up in its own words and goes on from that",
        factory="composer_plugin_summary.summarize:Summarizing",
        config=SummaryConfig,
        capabilities={"context.branches"},
    )
    yield ContextSpec(
        name="prompted",
        summary="the same by a long request for a dozen sections: the baseline",
        factory="composer_plugin_summary.summarize:Summarizing",
        config=PromptedConfig,
        capabilities={"context.branches"},
    )
    yield ContextSpec(
        name="truncate",
        summary="at a count of tokens all but the prompt and the latest turns is left out",
        factory="composer_plugin_summary.truncate:Truncating",
        config=TruncateConfig,
        capabilities={"context.branches"},
    )


@hookimpl
def composer_rewards() -> Iterable[RewardSpec]:
    yield RewardSpec(
        name="kept",
        summary="probe, worth nothing unless weighed: share of the facts read so far that summaries hold",
        function="composer_plugin_summary.probe:kept",
        config=ProbeConfig,
        weight=0.0,
    )


@hookimpl
def composer_check(run: RunView) -> Iterable[Problem]:
    for id, config in run.settings.get("contexts", ()):
        if id.startswith("summary/"):
            yield from problems(config, run)
