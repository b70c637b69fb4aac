"""What the page shows, as plain data: the history of a run, its summary, and a bounded sample of its traces.

The script in the page only draws. Every choice (which curves share a chart, which traces are shown, what an evaluation
is compared with) is made here, where it can be tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from composer_core.errors import ComposerError
from composer_core.history import EpisodeRow, Evaluation, History, StageLog, changed
from composer_core.traces import decode
from composer_plugin_report.config import DURING, HtmlConfig
from composer_plugin_report.traces import trace_model
from composer_plugin_report.windows import AFTER, BEFORE, CLOSED, PROBE, Windows


@frozen
class Chart:
    """Metrics that share a chart."""

    title: str
    metrics: tuple[str, ...]
    kind: str = "line"
    """line, or area for shares stacked to 1."""
    unit: str = ""
    """Of the values: share, tokens/s, ..."""
    log: bool = False
    limit: float | None = None
    """A bound drawn as a line, for example that of parity."""


CHARTS = (
    Chart("Reward", ("reward_mean",)),
    Chart("Solve rate and best of group", ("solve_rate", "best_of_group"), unit="share"),
    Chart("Loss", ("loss",)),
    Chart("Accuracy", ("accuracy",), unit="share"),
    Chart("Turns and calls per episode", ("turns_mean", "calls_mean")),
    Chart("Sampled tokens per episode", ("tokens_mean",), unit="tokens"),
    Chart("Parallel width", ("parallel_width",), unit="calls at once"),
    Chart("Sampler-trainer parity, p99.9; limit of fp32", ("parity_p999",), unit="|Δ log p|", log=True, limit=1e-5),
    Chart("Throughput", ("sampler_tokens_per_s", "trainer_tokens_per_s"), unit="tokens/s"),
    Chart("Episodes per second", ("episodes_per_s",), unit="1/s"),
    Chart("Voids, flat groups, masked sequences", ("void_share", "flat_share", "masked_share"), unit="share"),
    Chart("Replayed experts", ("route_disagreement_share", "rerouted_share"), unit="share"),
    Chart("Gradient norm", ("grad_norm",)),
    Chart("Entropy", ("entropy",), unit="nats"),
    Chart("Staleness, largest", ("staleness_max",), unit="versions"),
    Chart("Learning rate", ("learning_rate",)),
)
FAMILIES = (
    Chart("Tool mix", ("tool/",), kind="area", unit="share of calls"),
    Chart("Parts of the reward", ("reward/",), unit="weight × value"),
    Chart("What each part teaches: deviation within groups", ("reward_std/",), unit="weight × value"),
)
"""Charts of all metrics whose names begin so."""
WINDOW_CHARTS = (
    Chart("Windows filled per episode", (CLOSED,)),
    Chart("Tokens of a branch as it was left, and of the next as it began", (BEFORE, AFTER), unit="tokens"),
)
INTERVAL = "_ci95"
"""Ends the name of a metric that is the half-width of another's 95 % interval."""
MOST_POINTS = 600
"""Points kept of one curve, evenly spaced; the last one always."""


def page_model(run_dir: Path, history: History, config: HtmlConfig, windows: Windows | None = None) -> dict[str, Any]:
    summary = _json(run_dir / "summary.json") or history.summary
    twins = pairs(history.episodes.values(), config.pairs)
    chosen = {row.id: row for row in (*sample(history.episodes.values(), config.traces), *twins.values())}
    shown = sorted(chosen.values(), key=lambda row: row.time_s)
    return {
        "name": history.name or run_dir.name,
        "status": history.status,
        "started_s": history.spans[0][0] if history.spans else 0,
        "spent_s": history.spent_s,
        "starts": history.starts,
        "stages": stages(history),
        "evaluations": evaluations(history.latest(), summary),
        "changed": _changed(history),
        "windows": windows_model(windows if windows is not None else Windows.read(run_dir)),
        "outcomes": {purpose: dict(counts) for purpose, counts in history.outcomes().items()},
        "episodes": len(history.episodes),
        "faults": [[*key, times] for key, times in history.faults.most_common(50)],
        "ledger": _ledger(_json(run_dir / "status.json")),
        "summary": summary,
        "plugins": _json(run_dir / "plugins.json") or list(history.plugins),
        "config": _text(run_dir / "config.json"),
        "traces": [
            {**entry, "twin": twins[row.id].id if row.id in twins else None}
            for row in shown
            if (entry := _trace(run_dir, row, history, config)) is not None
        ],
    }


def _ledger(status: Any) -> dict[str, Any] | None:
    """What the ledger of the last rl stage has counted, as it was last told; None without a stage that has one."""
    found = status.get("ledger") if isinstance(status, dict) else None
    if not isinstance(found, dict):
        return None
    rows = [[name.replace("_", " "), value] for name, value in found.items()]
    return {"stage": str(status.get("stage", "?")), "step": status.get("step"), "rows": rows}


# --- curves -------------------------------------------------------------------------------------------------------


def stages(history: History) -> list[dict[str, Any]]:
    """Stages with their charts; evaluations made during training stand beside the last stage's first chart."""
    made = [_stage(stage) for stage in history.stages.values()]
    during = repeated(history.evaluations.values())
    if made and during:
        made[-1]["charts"].insert(1, during)
    return made


def _stage(stage: StageLog) -> dict[str, Any]:
    return {
        "name": stage.name,
        "kind": stage.kind,
        "steps": stage.steps,
        "done": max(stage.metrics, default=0),
        "spent_s": stage.spent_s,
        "ended": stage.ended,
        "charts": charts(stage),
    }


def charts(stage: StageLog) -> list[dict[str, Any]]:
    """The charts of a stage: known metrics grouped, families in a chart each, and every other metric by itself."""
    names = stage.names()
    families = [
        evolve(chart, metrics=found)
        for chart in FAMILIES
        if (found := tuple(name for name in names if name.startswith(chart.metrics)))
    ]
    known = {metric for chart in (*CHARTS, *families) for metric in chart.metrics}
    others = [Chart(name, (name,)) for name in names if name not in known and not name.endswith(INTERVAL)]
    grouped = [chart for chart in CHARTS if any(metric in names for metric in chart.metrics)]
    return [_chart(chart, stage) for chart in (*grouped[:5], *families, *grouped[5:], *others)]


def _chart(chart: Chart, stage: StageLog) -> dict[str, Any]:
    series = [
        {
            "name": _plain(name),
            "points": _thin(points),
            "band": _band(points, stage.series(name + INTERVAL)),
        }
        for name in chart.metrics
        if (points := stage.series(name))
    ]
    return _fields(chart, series)


def _plain(name: str) -> str:
    """A metric's name without that of its family."""
    return next(
        (name.removeprefix(start) for family in FAMILIES for start in family.metrics if name.startswith(start)), name
    )


def _band(points: list[tuple[int, float]], widths: list[tuple[int, float]]) -> list[tuple[int, float, float]]:
    """(step, low, high) where a metric came with the half-width of its 95 % interval."""
    half = dict(widths)
    return [(step, value - half[step], value + half[step]) for step, value in _thin(points) if step in half]


def _fields(chart: Chart, series: list[dict[str, Any]]) -> dict[str, Any]:
    fields = {"title": chart.title, "kind": chart.kind, "unit": chart.unit, "log": chart.log, "limit": chart.limit}
    return {**fields, "series": series}


def _thin(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    if len(points) <= MOST_POINTS:
        return points
    last = len(points) - 1
    return [points[index * last // (MOST_POINTS - 1)] for index in range(MOST_POINTS)]


def windows_model(windows: Windows) -> dict[str, Any] | None:
    """Episodes of several windows, by purpose and over the steps of stages; None for a run that has none."""
    table = windows.table()
    logs = [StageLog(name, metrics=dict(steps)) for name, steps in windows.steps.items()]
    probes = sorted({name for *_, row in table for name in row if name.startswith(PROBE)})
    kinds = (*WINDOW_CHARTS, *(Chart(name, (name,), unit="share") for name in probes))
    charts = [_chart(chart, log) for log in logs for chart in kinds if any(map(log.series, chart.metrics))]
    return {"table": table, "names": [CLOSED, BEFORE, AFTER, *probes], "charts": charts} if table else None


# --- evaluations --------------------------------------------------------------------------------------------------


def evaluations(entries: Iterable[Evaluation], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per evaluated case, with its arms ("before", "after", ...); names are "arm/case". See also `repeated`.

    Controls that only the summary knows (`control_guess`, ...) become rows too, without an interval.
    """
    cases: dict[str, dict[str, Any]] = {}
    for entry in entries:
        arm, slash, case = entry.name.partition("/")
        arm, case = (arm, case) if slash else ("", arm)
        control = arm.startswith("control") or "control" in case or f"control_{case}" in summary
        if DURING.fullmatch(arm):
            continue
        row = cases.setdefault(case, {"case": case, "control": control, "arms": []})
        row["arms"].append({"arm": arm, "step": entry.step, "metrics": dict(entry.metrics)})
    if not any(row["control"] for row in cases.values()):
        for name, value in summary.items():
            if name.startswith("control_") and isinstance(value, (int, float)):
                case = name.removeprefix("control_")
                told = {"arm": "control", "step": None, "metrics": {"solve_rate": value}}
                cases[case] = {"case": case, "control": True, "arms": [told]}
    return sorted(cases.values(), key=lambda row: row["control"])


def repeated(entries: Iterable[Evaluation]) -> dict[str, Any] | None:
    """Solve rates of cases that were evaluated during training ("step-30/case"), as a chart; None without any."""
    curves: dict[str, dict[int, Mapping[str, float]]] = {}
    for entry in entries:
        arm, _, case = entry.name.partition("/")
        if (found := DURING.fullmatch(arm)) and "solve_rate" in entry.metrics:
            curves.setdefault(case, {})[int(found[1])] = entry.metrics
    series = [
        {
            "name": case,
            "points": [(step, at["solve_rate"]) for step, at in sorted(steps.items())],
            "band": [(step, at["ci95_low"], at["ci95_high"]) for step, at in sorted(steps.items()) if "ci95_low" in at],
        }
        for case, steps in curves.items()
    ]
    chart = Chart("Solve rate during training", (), unit="share")
    return _fields(chart, series) if series else None


def _changed(history: History) -> dict[str, Any] | None:
    case, rows = changed(history.latest())
    return {"case": case, "rows": rows} if rows else None


# --- traces -------------------------------------------------------------------------------------------------------


def sample(episodes: Iterable[EpisodeRow], most: int) -> list[EpisodeRow]:
    """At most `most` episodes with a trace, shared evenly by (purpose, outcome) and spread over time within each."""
    buckets: dict[tuple[str, str], list[EpisodeRow]] = {}
    for row in episodes:
        if row.uri is not None:
            buckets.setdefault((row.purpose, row.outcome), []).append(row)
    spread = [_spread(bucket, most) for bucket in buckets.values()]
    dealt = [row for turn in zip_longest(*spread) for row in turn if row is not None]
    return sorted(dealt[:most], key=lambda row: row.time_s)


def pairs(episodes: Iterable[EpisodeRow], most: int) -> dict[str, EpisodeRow]:
    """Id -> the same attempt at the other moment, for at most `most` attempts made before and after training.

    Equal tasks and equal noise, so what differs is the policy; attempts whose outcome changed come first.
    """
    moments: dict[str, dict[str, EpisodeRow]] = {"before": {}, "after": {}}
    for row in episodes:
        moment = row.purpose.partition("/")[0]
        if moment in moments and row.uri is not None:
            moments[moment][row.id.removeprefix(f"{moment}-")] = row
    both = [(row, moments["after"][key]) for key, row in moments["before"].items() if key in moments["after"]]
    kinds: dict[tuple[str, str], list[tuple[EpisodeRow, EpisodeRow]]] = {}
    for one, other in both:
        kinds.setdefault((one.outcome, other.outcome), []).append((one, other))
    ordered = sorted(kinds, key=lambda kind: kind[0] == kind[1])
    dealt = [pair for turn in zip_longest(*(kinds[kind] for kind in ordered)) for pair in turn if pair is not None]
    return {row.id: twin for one, other in dealt[:most] for row, twin in ((one, other), (other, one))}


def _spread(rows: list[EpisodeRow], most: int) -> list[EpisodeRow]:
    """Rows reordered so that every prefix is spread over the whole: ends first, then ever finer halves."""
    taken: dict[int, None] = {}
    parts = 1
    while len(taken) < min(most, len(rows)):
        taken.update(dict.fromkeys(part * (len(rows) - 1) // parts for part in range(parts + 1)))
        parts *= 2
    return [rows[index] for index in taken]


def _trace(run_dir: Path, row: EpisodeRow, history: History, config: HtmlConfig) -> dict[str, Any] | None:
    """None for a trace that is gone or unreadable: a report of what is left beats none."""
    try:
        path = run_dir / str(row.uri)
        if not path.resolve().is_relative_to(run_dir.resolve()):
            return None
        trace = decode(path.read_bytes())
        scores = (*trace.scores, *history.group_scores.get(trace.key.episode_id, ()))
        return trace_model(evolve(trace, scores=scores), row, config.text_chars)
    except (OSError, ValueError, ComposerError):
        return None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
