"""What is read out of finished runs and kept of them, and the statistics of the comparison. No run is started here.

Every arm is asked the same tasks as often, so a task's solve rate over seeds and attempts in one arm is paired with
that in another. Intervals are 95 % bootstrap intervals that resample tasks; that of the ratio resamples seeds too.

    compaction error of an arm = solve rate with an unlimited window - solve rate of the arm
    ratio                      = error of self / error of prompted

The ratio is quoted only if there is something to compare: the unlimited window solves at least 0.8 and prompted loses
at least 0.10 of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from attrs import asdict, frozen

from composer_core import statistics
from composer_core.noise import bits, key_of
from composer_core.tracking import read_events

Rows = Mapping[str, Sequence[int]]
SOLVED, LOST = 0.8, 0.10
"""Least solve rate of the unlimited window, and least error of prompted, for a ratio to mean something."""
AIM_ERROR, AIM_TOKENS = 0.5, 0.2
"""What self is to reach: shares of prompted's error and of its tokens."""


@frozen
class Measured:
    """One evaluation of one run."""

    rows: Rows
    """Task -> 1 or 0 of each attempt."""
    summary_tokens: float
    """Sampled for one summary, on average; 0 where none was written."""
    summaries: float
    """Compactions of an episode, on average."""
    kept: float
    """Share of all settings read so far that a summary still holds word for word, on average; 1 without a summary."""
    cut: float
    """Share of summaries that met their limit before their end, on average."""
    limited: float
    """Share of episodes that a limit ended."""
    silent: float
    """Share of episodes that a turn without a call ended."""
    wall_s: float
    """Of the whole run, stages and evaluations."""


def read(folder: Path, moment: str) -> Measured:
    """The evaluation `main` of a finished run, with what the probe found in its episodes."""
    evaluation = json.loads((folder / f"evaluations/{moment}-main.json").read_text(encoding="utf-8"))
    ended = {
        event["result"]["key"]["task_id"] + str(event["result"]["key"]["attempt"]): event["result"]
        for event in read_events(folder)
        if event["event"] == "EpisodeEnded" and event["purpose"] == f"{moment}/main"
    }
    probes = [score for one in ended.values() for score in one["scores"] if score["reward"] == "summary/kept"]
    segments = [score["parts"]["segments"] for score in probes]

    def of_one(part: str) -> float:
        """Mean over summaries, of which an episode gives its mean and their count."""
        of_all = [score["parts"].get(part, 0.0) * count for score, count in zip(probes, segments, strict=True)]
        found: float = sum(of_all) / max(1.0, sum(segments))
        return found

    return Measured(
        rows=evaluation["rows"],
        summary_tokens=of_one("summary_tokens"),
        summaries=statistics.mean(segments),
        kept=statistics.mean([score["value"] for score in probes]),
        cut=of_one("cut_share"),
        limited=statistics.mean([one["stop"] not in ("finished", "no_call") for one in ended.values()]),
        silent=statistics.mean([one["stop"] == "no_call" for one in ended.values()]),
        wall_s=seconds(folder),
    )


def seconds(folder: Path) -> float:
    """Of a whole finished run."""
    found: float = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["wall_s"]
    return found


@frozen
class Results:
    """All that the page is made of."""

    found: Mapping[str, Sequence[Measured]]
    """Key of ARMS -> what each seed found, in one order of seeds."""
    base_s: Sequence[float]
    """Seconds of what a seed's arms begin with, in that order."""
    command: str
    where: str
    """Date, processor, Python."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), separators=(",", ":")) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        text = json.loads(path.read_text(encoding="utf-8"))
        found = {name: [Measured(**one) for one in seeds] for name, seeds in text["found"].items()}
        return cls(found, text["base_s"], text["command"], text["where"])


def pooled(seeds: Sequence[Measured]) -> dict[str, list[int]]:
    """Outcomes by task, over all seeds."""
    found: dict[str, list[int]] = {}
    for one in seeds:
        for task, outcomes in one.rows.items():
            found.setdefault(task, []).extend(outcomes)
    return found


@frozen
class Ratio:
    """Error of self as a share of prompted's."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def errors(unlimited: Rows, arm: Rows) -> dict[str, float]:
    """Task -> solve rate lost against the unlimited window."""
    shared = sorted(set(unlimited) & set(arm))
    return {task: statistics.mean(unlimited[task]) - statistics.mean(arm[task]) for task in shared}


Seeds = Sequence[Rows]
"""Rows of each seed, in one order."""


def ratio(unlimited: Seeds, prompted: Seeds, ours: Seeds, seed: int = 0) -> Ratio | None:
    """Bootstrapped over seeds and, within each that is drawn, over tasks; None where it may not be quoted.

    A resample in which prompted loses nothing has no ratio and counts as infinite, so it can only widen the interval.
    """
    pairs = []
    for whole, theirs, own in zip(unlimited, prompted, ours, strict=True):
        lost, left = errors(whole, theirs), errors(whole, own)
        pairs.append([(lost[task], left[task]) for task in sorted(lost.keys() & left.keys())])
    solved = statistics.mean([statistics.solve_rate(rows) for rows in unlimited])
    if solved < SOLVED or statistics.mean([their for each in pairs for their, _ in each]) < LOST:
        return None
    found = sorted(_share(_resampled(pairs, key_of("long horizon", seed, at))) for at in range(statistics.RESAMPLES))
    low, high = found[int(0.025 * len(found))], found[math.ceil(0.975 * len(found)) - 1]
    return Ratio(_share([pair for each in pairs for pair in each]), low, high)


def _resampled(pairs: Sequence[Sequence[tuple[float, float]]], key: int) -> list[tuple[float, float]]:
    """As many seeds, and of each as many tasks, drawn with replacement."""
    draws = map(partial(bits, key), count())
    chosen = [pairs[next(draws) % len(pairs)] for _ in pairs]
    return [each[next(draws) % len(each)] for each in chosen for _ in each]


def _share(pairs: Sequence[tuple[float, float]]) -> float:
    theirs, ours = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return ours / theirs if theirs > 0 else math.inf
