"""What `check` proves: whatever a turn brings at the trigger, there is room left to sum it up. Thin.

Between turns a branch has fewer tokens than the trigger, or the context acts. So the fullest a branch can get is the
trigger, a turn, its results, the request and the answer; each is bounded by a setting, and their sum by the window.
Only a branch that is at its trigger as it opens takes a turn all the same; what is carried over is held against that,
prompt, tool schemas and open to-dos are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from composer_core import Problem, RunView
from composer_core.types import Limits
from composer_plugin_summary.config import CompactionConfig, SummaryConfig, TruncateConfig

NEEDED = ("context_tokens", "turn_tokens", "output_chars")
"""Limits that the run file must state: those of tasks are not known before they are built."""
CUT_LINE_CHARS = 40
"""Of the line that stands in a result for what was cut."""


def problems(config: CompactionConfig, run: RunView) -> Iterator[Problem]:
    """Why a branch could overflow before it is summed up, and settings without effect."""
    given = run.config.limits
    missing = [name for name in NEEDED if name not in given]
    if missing:
        yield Problem(
            where="limits",
            message=f"{' and '.join(missing)} must be stated: without them nothing proves that a summary has room",
            fix="state them under [limits]",
        )
    else:
        yield from _window(config, Limits(**{name: given[name] for name in NEEDED}))
    if isinstance(config, SummaryConfig):
        yield from _stages(
            config, {choice.stage.name for choice in run.config.stages if choice.stage.kind != "pretrain"}
        )


def _window(config: CompactionConfig, limits: Limits) -> Iterator[Problem]:
    parts = needs(config, limits)
    total, window = sum(parts.values()), limits.context_tokens
    if total > window:
        room = config.trigger_tokens - (total - window)
        told = " + ".join(f"{name} {tokens:,}" for name, tokens in parts.items())
        lower = f"trigger_tokens = {room}" if room > 0 else "a smaller limits.output_chars"
        yield Problem(
            where="context.trigger_tokens",
            message=f"a branch may need {told} = {total:,} tokens, the window (limits.context_tokens) has {window:,}",
            fix=f"{lower}, limits.context_tokens = {total}, or shorter turns, results and summaries",
        )
    carried = opens_with(config, limits)
    if carried >= config.trigger_tokens:
        yield Problem(
            where="context.trigger_tokens",
            message=f"a new branch may begin with {carried:,} tokens beside the prompt, at or above the trigger",
            fix="raise trigger_tokens, or carry less over",
        )


def needs(config: CompactionConfig, limits: Limits) -> Mapping[str, int]:
    """Most tokens that each part of a branch can have when it is closed."""
    parts = {
        "trigger": config.trigger_tokens - 1,
        "turn": limits.turn_tokens,
        "results": config.results * result_tokens(config, limits),
    }
    if not isinstance(config, SummaryConfig):
        return {**parts, "room for another token": 1}  # results that fill the window end the episode
    request = min(len(config.asked.encode()), math.ceil(len(config.asked) * config.tokens_per_char))
    return {**parts, "request": request + config.frame_tokens, "answer": config.answer_tokens}


def result_tokens(config: CompactionConfig, limits: Limits) -> int:
    """Most tokens of one result; under a limit that is shorter, the line that says what was cut."""
    return math.ceil(max(limits.output_chars, CUT_LINE_CHARS) * config.tokens_per_char) + config.frame_tokens


def opens_with(config: CompactionConfig, limits: Limits) -> int:
    """Most tokens of a new branch beside prompt and state; of turns that are told again, as many as they had."""
    if isinstance(config, TruncateConfig):
        return config.keep_turns * (limits.turn_tokens + config.results * result_tokens(config, limits))
    return config.summary_tokens + config.frame_tokens if isinstance(config, SummaryConfig) else 0


def _stages(config: SummaryConfig, names: set[str]) -> Iterator[Problem]:
    for name in sorted(set(config.untrained_in) - names):
        yield Problem(
            where="context.untrained_in",
            message=f"no stage {name!r} has episodes",
            fix=f"name some of {', '.join(sorted(names)) or 'none: the run has no such stage'}",
        )
