"""What is kept of finished runs: a table of tasks for each evaluation, groups and figures of training. Starts nothing.

Tables hold means over a task's attempts, since a task is what intervals resample:

    solved, best          share of attempts that solved it, and whether any did
    over                  calls beyond the fewest that do it, 0 where there were no more than those; of all attempts
    excess                the same of attempts that solved it (a task that none solved has none)
    width                 reads of a turn with reads and writes of one with writes, of attempts that have such turns
    calls, turns, tokens, looks, reads, writes, needless, blind      of all attempts
    alone_s               wall clock of an attempt that ran by itself, the median of three rounds

Legend: T tokens of a branch, V vocabulary.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from composer_core.errors import ConfigError
from composer_core.statistics import mean
from composer_core.traces import decode
from composer_core.tracking import read_events
from composer_core.types import SlotKey

Table = dict[str, dict[str, float | None]]
"""Task -> column -> value."""
PARTS = ("looks", "reads", "writes", "needless", "blind")
POOLED = ("parity_p999", "parity_apart_share")
"""In every step of all tokens of the stage so far, or since the run was last resumed."""
STEPS = ("parity_median", "weight_mean", "weight_capped_share", "weight_effective_share")
"""Of a step's tokens."""


def evaluation(folder: Path, moment: str) -> Table:
    """The evaluation `main` of a run at a moment, before or after; empty if it had none."""
    tasks = defaultdict(list)
    for result in _ended(folder, f"{moment}/main"):
        if result["verdict"]["outcome"] in ("solved", "failed"):
            tasks[result["key"]["task_id"]].append(result)
    return {task: _columns(results) for task, results in sorted(tasks.items())}


def alone(folders: Sequence[Path]) -> dict[str, float]:
    """Task -> seconds of an episode that ran by itself: the mean over attempts, of that the median over runs.

    The first episode of each process, which warms up, is left out.
    """
    found = defaultdict(list)
    for folder in folders:
        tasks = defaultdict(list)
        for result in _ended(folder, "after/main", warm=True):
            if result["verdict"]["outcome"] in ("solved", "failed"):
                tasks[result["key"]["task_id"]].append(float(result["stats"]["wall_s"]))
        for task, values in tasks.items():
            found[task].append(mean(values))
    return {task: median(values) for task, values in sorted(found.items())}


def loss(model: Path, folder: Path) -> float:
    """Mean over tokens of -log p, in nats, that a model gives to what was demonstrated in a run's evaluation.

    Read from the traces of its evaluation `demonstrated`; tokens are those that the demonstrator wrote.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from composer_core.tensors import to_tensor, token_logprobs

    policy = AutoModelForCausalLM.from_pretrained(model).eval()
    total, count = 0.0, 0
    for result in _ended(folder, "before/demonstrated"):
        for branch in decode((folder / result["trace"]["uri"]).read_bytes()).branches:
            ids_T, sampled_T = to_tensor(branch.ids).long(), to_tensor(branch.sampled)
            with torch.inference_mode():
                logits_TV = policy(ids_T[None, :-1]).logits[0]
            nll_T = -token_logprobs(logits_TV, ids_T[1:])[sampled_T[1:] > 0]
            total, count = total + float(nll_T.sum()), count + len(nll_T)
    if not count:
        raise ConfigError("nothing was demonstrated", where=str(folder), expected="an evaluation `demonstrated`")
    return total / count


def voids(folder: Path) -> dict[str, float]:
    """How many attempts of evaluations were void, where any was; they are no failures, and in no table."""
    found = [one for moment in ("before", "after") for one in _ended(folder, f"{moment}/main")]
    count = sum(one["verdict"]["outcome"] not in ("solved", "failed") for one in found)
    return {"voids": float(count)} if count else {}


def _ended(folder: Path, purpose: str, *, warm: bool = False) -> list[Mapping[str, Any]]:
    """Results of a purpose's episodes; one that was made again after an interruption counts once, as the last.

    `warm` leaves out the first of each process.
    """
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    first = True
    for event in read_events(folder):
        if event["event"] == "RunStarted":
            first = True
        elif event["event"] == "EpisodeEnded" and event["purpose"] == purpose:
            result = event["result"]
            if not (warm and first):
                found[result["key"]["task_id"], result["key"]["attempt"]] = result
            first = False
    return [*found.values()]


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
        "over": mean([max(0.0, parts["excess"]) for parts in probes]),
        "excess": mean(excess) if excess else None,
        "width": mean(widths) if (widths := [wide for parts in probes if (wide := _width(parts))]) else None,
        **{name: mean([one.get(name, 0.0) for one in stats]) for name in ("calls", "turns", "tokens")},
        **{name: mean([parts[name] for parts in probes]) for name in PARTS},
    }
    return {name: value if value is None else round(value, 4) for name, value in row.items()}


def _width(parts: Mapping[str, float]) -> float | None:
    turns = parts["reading_turns"] + parts["writing_turns"]
    return (parts["reads"] + parts["writes"]) / turns if turns else None


def _parts(result: Mapping[str, Any]) -> Mapping[str, float]:
    for score in result["scores"]:
        if score["reward"] == "chores/measures":
            found: Mapping[str, float] = score["parts"]
            return found
    raise ConfigError("an attempt was not measured", where=result["key"]["task_id"], fix="the reward chores/measures")


def groups(folder: Path) -> list[tuple[int, int, int, int, int]]:
    """(step, tokens sampled before it, broken files, attempts that solved it, attempts) of each group trained on."""
    solved: dict[str, bool] = {}
    tokens: dict[str, float] = {}
    waiting: dict[str, Mapping[str, Any]] = {}
    steps: dict[int, list[tuple[int, int, int, int, int]]] = {}
    spent: dict[int, int] = {}
    for event in read_events(folder):
        if event["event"] == "EpisodeEnded" and event["purpose"] == "rl":
            result = event["result"]
            episode = SlotKey(**result["key"]).episode_id
            solved[episode] = result["verdict"]["outcome"] == "solved"
            tokens[episode] = result["stats"].get("tokens", 0.0)
        elif event["event"] == "GroupScored" and event["episodes"]:
            waiting[event["group"]] = event
        elif event["event"] == "StepEnded" and event["stage"] == "rl":
            steps[event["step"]] = [  # a step that was made again counts once, as it was the last time
                (
                    event["step"],
                    spent.get(event["step"] - 1, 0),
                    int(one["task_id"].split("-")[2]),
                    won,
                    len(one["episodes"]),
                )
                for one in waiting.values()
                for won in [sum(solved[episode] for episode in one["episodes"])]
            ]
            waiting = {}
            spent.setdefault(event["step"], round(sum(tokens.values())))  # as it was the first time
    return [group for step in sorted(steps) for group in steps[step]]


def figures(folder: Path) -> dict[str, float]:
    """Parity and importance weights of a run; what a step has of its own tokens is the mean over steps."""
    steps = [event["metrics"] for event in _steps(folder, "rl")]
    found = {name: steps[-1][name] for name in POOLED if steps and name in steps[-1]}
    for name in STEPS:
        values = [metrics[name] for metrics in steps if name in metrics]
        found |= {name: mean(values)} if values else {}
    return found


def _steps(folder: Path, stage: str) -> list[dict[str, Any]]:
    """A stage's steps; one that was made again after an interruption counts once, as it was the last time."""
    found = {e["step"]: e for e in read_events(folder) if e["event"] == "StepEnded" and e["stage"] == stage}
    return [found[step] for step in sorted(found)]


def date(folder: Path) -> str:
    """Day, in UTC, of a run's last event."""
    *_, last = read_events(folder)
    return time.strftime("%Y-%m-%d", time.gmtime(last["time_s"]))


def seconds(folder: Path) -> float:
    """Wall clock of a whole run."""
    return round(float(_summary(folder)["wall_s"]), 1)


def machine(folder: Path) -> str:
    """Processor and Python of a run."""
    summary = _summary(folder)
    return f"{summary['cpu']}, Python {summary['versions']['python']}"


def commit(folder: Path) -> str:
    """Revision of a run; empty outside of a repository."""
    return str(_summary(folder)["commit"] or "")


def _summary(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return found
