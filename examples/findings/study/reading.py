"""What is kept of finished runs: a table of tasks for each evaluation, groups and figures of training. Starts nothing.

Tables hold means over a task's attempts, since a task is what intervals resample:

    solved, best          share of attempts that solved it, and whether any did
    excess                superfluous calls, of attempts that solved it (a task that none solved has none)
    calls, turns, calls_a_turn, tokens, looks, reads, writes, needless, blind      of all attempts
    alone_s               wall clock of an attempt that ran by itself
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_core.statistics import mean
from composer_core.tracking import read_events

Table = dict[str, dict[str, float | None]]
"""Task -> column -> value."""
PARTS = ("looks", "reads", "writes", "needless", "blind")
LAST_SHARE = 0.2
"""Of imitation's steps, over which its loss is averaged."""
PARITY = ("parity_median", "parity_p999", "parity_apart_share")
WEIGHTS = ("weight_mean", "weight_capped_share", "weight_effective_share")


def evaluation(folder: Path, moment: str) -> Table:
    """The evaluation `main` of a run at a moment, before or after; empty if it had none."""
    ended: dict[tuple[str, int], Mapping[str, Any]] = {}
    for event in read_events(folder):
        if event["event"] == "EpisodeEnded" and event["purpose"] == f"{moment}/main":
            result = event["result"]  # made again after an interruption: the later one counts
            ended[result["key"]["task_id"], result["key"]["attempt"]] = result
    tasks = defaultdict(list)
    for (task, _), result in ended.items():
        if result["verdict"]["outcome"] in ("solved", "failed"):
            tasks[task].append(result)
    return {task: _columns(results) for task, results in sorted(tasks.items())}


def alone(folder: Path) -> dict[str, float]:
    """Task -> seconds of an episode that ran by itself."""
    found = evaluation(folder, "after")
    return {task: float(row["wall_s"] or 0.0) for task, row in found.items()}


def _columns(results: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    solved = [float(result["verdict"]["outcome"] == "solved") for result in results]
    probes = [_parts(result) for result in results]
    excess = [parts["excess"] for parts, won in zip(probes, solved, strict=True) if won]
    stats = [result["stats"] for result in results]
    row: dict[str, float | None] = {
        "attempts": float(len(results)),
        "bugs": probes[0]["bugs"],
        "solved": mean(solved),
        "best": max(solved),
        "excess": mean(excess) if excess else None,
        "calls_a_turn": mean([one["parallel_width"] for one in stats]),
        **{name: mean([one.get(name, 0.0) for one in stats]) for name in ("calls", "turns", "tokens", "wall_s")},
        **{name: mean([parts[name] for parts in probes]) for name in PARTS},
    }
    return {name: value if value is None else round(value, 4) for name, value in row.items()}


def _parts(result: Mapping[str, Any]) -> Mapping[str, float]:
    found: Mapping[str, float] = next(
        score["parts"] for score in result["scores"] if score["reward"] == "chores/measures"
    )
    return found


def groups(folder: Path) -> list[tuple[int, int, int, int]]:
    """(tokens sampled up to the step, broken files, attempts that solved it, attempts) of each group trained on."""
    solved: dict[str, bool] = {}
    tokens, waiting, found = 0.0, {}, []
    seen: set[str] = set()
    for event in read_events(folder):
        if event["event"] == "EpisodeEnded" and event["purpose"] == "rl":
            result = event["result"]
            solved[_id(result["key"])] = result["verdict"]["outcome"] == "solved"
            tokens += result["stats"].get("tokens", 0.0) * (_id(result["key"]) not in seen)
            seen.add(_id(result["key"]))
        elif event["event"] == "GroupScored" and event["episodes"]:
            waiting[event["group"]] = event
        elif event["event"] == "StepEnded" and event["stage"] == "rl":
            for scored in waiting.values():
                bugs = int(scored["task_id"].split("-")[2])
                won = sum(solved[one] for one in scored["episodes"])
                found.append((round(tokens), bugs, won, len(scored["episodes"])))
            waiting = {}
    return found


def _id(key: Mapping[str, Any]) -> str:
    return "-".join(filter(None, (key["moment"], key["stage"], key["task_id"], str(key["attempt"]))))


def figures(folders: Iterable[Path]) -> dict[str, float]:
    """Of the last run: parity and importance weights. Of the imitation before it: its loss."""
    *before, last = folders
    steps = [event["metrics"] for event in _steps(last, "rl")]
    found = {name: steps[-1][name] for name in PARITY if steps and name in steps[-1]}
    for name in WEIGHTS:
        values = [metrics[name] for metrics in steps if name in metrics]
        found |= {name: mean(values)} if values else {}
    losses = [event["metrics"]["nll"] for folder in before for event in _steps(folder, "sft")]
    latest = losses[-max(1, int(LAST_SHARE * len(losses))) :]
    return {**found, **({"imitation_nll": mean(latest)} if losses else {})}


def _steps(folder: Path, stage: str) -> list[dict[str, Any]]:
    """A stage's steps; one that was made again after an interruption counts once, as it was the last time."""
    found = {e["step"]: e for e in read_events(folder) if e["event"] == "StepEnded" and e["stage"] == stage}
    return [found[step] for step in sorted(found)]


def seconds(folder: Path) -> float:
    """Wall clock of a whole run."""
    return round(float(json.loads((folder / "summary.json").read_text(encoding="utf-8"))["wall_s"]), 1)
