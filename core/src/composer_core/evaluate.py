"""Evaluation: the same tasks with the same noise at every moment, void attempts apart (RL.md section 8).

An attempt's noise depends on its conditions, the task and its number, not on the moment, so "before" and "after" are
paired; and an attempt that two sets of a moment ask for is run once, under the name of the first. Results are kept as
JSON (task -> outcomes), which is what a paired comparison across moments or seeds needs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from composer_core import statistics
from composer_core.config import EvaluationSet, limits_for
from composer_core.errors import ConfigError
from composer_core.types import EpisodeRequest, EpisodeResult, Sampling, SlotKey, Task, TaskView

BEST_OF = 8
REFILLS = 2
"""Times a void attempt is made again, with the same noise, before it is reported as void."""


@frozen
class Evaluation:
    """What one evaluation found."""

    name: str
    moment: str
    rows: dict[str, list[int]]
    """Task id -> 1 or 0 for each valid attempt."""
    metrics: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "moment": self.moment, "rows": self.rows, "metrics": self.metrics}


Run = Callable[[EpisodeRequest, str], Awaitable[EpisodeResult]]
"""Runs one attempt; the text is its purpose, "moment/set"."""


async def evaluate(
    sets: Sequence[EvaluationSet],
    moment: str,
    tasks_of: Callable[[str], Sequence[Task]],
    run: Run,
    run_seed: int,
    limits: Mapping[str, Any],
) -> list[Evaluation]:
    """All sets of a moment side by side: the last slow episodes of one would leave the samplers idle.

    Raises:
        ConfigError: a split has fewer tasks than a set asks for.
    """
    plans = [_requests(set_, moment, tasks_of(set_.split), run_seed, limits) for set_ in sets]
    wanted: dict[SlotKey, tuple[EpisodeRequest, str]] = {}
    for set_, plan in zip(sets, plans, strict=True):
        for request in plan:
            wanted.setdefault(request.key, (request, f"{moment}/{set_.name}"))
    results = await gather_all([_valid(run, request, purpose) for request, purpose in wanted.values()])
    by_key = dict(zip(wanted, results, strict=True))
    return [
        Evaluation(set_.name, moment, *summarize([by_key[request.key] for request in plan], run_seed))
        for set_, plan in zip(sets, plans, strict=True)
    ]


async def _valid(run: Run, request: EpisodeRequest, purpose: str) -> EpisodeResult:
    """An attempt, made again while it is void and refills are left."""
    for _ in range(REFILLS):
        result = await run(request, purpose)
        if result.verdict.valid:
            return result
    return await run(request, purpose)


def _requests(
    set_: EvaluationSet, moment: str, tasks: Sequence[Task], run_seed: int, limits: Mapping[str, Any]
) -> list[EpisodeRequest]:
    if len(tasks) < set_.tasks:
        raise ConfigError(
            f"split {set_.split!r} has {len(tasks)} tasks",
            where=f"evaluations.{set_.name}.tasks",
            found=str(set_.tasks),
        )
    return [
        request_for(task, SlotKey(task.id, attempt, f"eval-{set_.conditions}", moment), run_seed, limits, set_)
        for task in tasks[: set_.tasks]
        for attempt in range(set_.attempts)
    ]


async def gather_all(work: Sequence[Any]) -> list[Any]:
    """`asyncio.gather` that, when cancelled or failing, cancels the rest and waits for it."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Those that have not ended, and wait until they have."""
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


def limited(view: TaskView, limits: Mapping[str, Any]) -> TaskView:
    """The task as a run's episodes and rewards see it, under the run's limits."""
    return evolve(view, limits=limits_for(view.limits, limits)) if limits else view


def request_for(
    task: Task, key: SlotKey, run_seed: int, limits: Mapping[str, Any], set_: EvaluationSet | None = None
) -> EpisodeRequest:
    """The order to run one episode, under the run's limits."""
    return EpisodeRequest(
        key=key,
        group=f"{key.moment or key.stage}:{task.id}",
        task=limited(task.view, limits),
        grading=task.grading,
        run_seed=run_seed,
        sampling=Sampling(set_.temperature if set_ else 1.0),
        sampler=set_.sampler if set_ else "policy",
        observations=set_.observations if set_ else "full",
    )


def summarize(results: Sequence[EpisodeResult], seed: int = 0) -> tuple[dict[str, list[int]], dict[str, float]]:
    """Rows and metrics of one evaluation's results; without a valid attempt the metrics are counts alone."""
    rows: dict[str, list[int]] = {}
    valid = [result for result in results if result.verdict.valid]
    for result in valid:
        rows.setdefault(result.key.task_id, []).append(int(result.verdict.solved))
    metrics = {"episodes": float(len(valid)), "voids": float(len(results) - len(valid))}
    if not valid:  # nothing was measured: no rate at all, rather than one of 0
        return rows, metrics
    low, high = statistics.interval(rows, seed)
    metrics = {"solve_rate": statistics.solve_rate(rows), "ci95_low": low, "ci95_high": high, **metrics, **means(valid)}
    best = statistics.pass_at_k(rows, BEST_OF)
    if best is not None:
        metrics[f"best_of_{BEST_OF}"] = best
    return rows, metrics


def means(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Averages over episodes that evaluations and RL steps report alike."""

    def of(name: str) -> float:
        return statistics.mean([result.stats.get(name, 0.0) for result in results])

    calls = max(1.0, sum(result.stats.get("calls", 0.0) for result in results))
    stops = Counter(result.stop.value for result in results if result.stop)
    truncated = sum(count for stop, count in stops.items() if stop in ("turns", "tokens", "time", "context"))
    tools = {name for result in results for name in result.stats if name.startswith("tool/")}
    return {
        "turns_mean": of("turns"),
        "calls_mean": of("calls"),
        "tokens_mean": of("tokens"),
        "parallel_width": of("parallel_width"),
        "truncated_share": truncated / max(1, len(results)),
        "no_call_share": stops["no_call"] / max(1, len(results)),
        "bad_call_share": sum(result.stats.get("bad_calls", 0.0) for result in results) / calls,
        "refused_share": sum(result.stats.get("refused_calls", 0.0) for result in results) / calls,
        **{name: sum(result.stats.get(name, 0.0) for result in results) / calls for name in sorted(tools)},
    }
