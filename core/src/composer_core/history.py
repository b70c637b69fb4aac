"""What happened in a run, folded from its events: the one reading of events.jsonl that `show` and reports share.

A fold over plain records (`tracking.to_record` or a line of events.jsonl), so a live tracker and a reader of an old run
folder arrive at the same history. What a resumed run repeated replaces what it repeats: steps by (stage, step),
evaluations by (name, step), episodes by id. Holds numbers and names only; the words of episodes are in their traces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from attrs import Factory, define, frozen

from composer_core.tracking import read_events
from composer_core.types import Score, SlotKey

__all__ = [
    "BEHAVIOR",
    "EpisodeRow",
    "Evaluation",
    "History",
    "StageLog",
    "changed",
]

Record = Mapping[str, Any]


@define
class StageLog:
    """One stage of a run."""

    name: str
    kind: str = ""
    steps: int | None = None
    """Its length in steps, when known beforehand."""
    spans: list[list[float]] = Factory(list)
    """[start, last sign of life] of each time the stage ran; more than one after a resume."""
    ended: bool = False
    metrics: dict[int, Mapping[str, float]] = Factory(dict)
    """Step -> metrics."""
    summary: Mapping[str, Any] = Factory(dict)

    @property
    def spent_s(self) -> float:
        return sum(last - start for start, last in self.spans)

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of one metric, in order of steps."""
        rows = sorted(self.metrics.items())
        return [(step, values[name]) for step, values in rows if isinstance(values.get(name), (int, float))]

    def names(self) -> list[str]:
        """Metrics in order of first appearance."""
        return list(dict.fromkeys(name for _, values in sorted(self.metrics.items()) for name in values))


@frozen
class Evaluation:
    """One evaluation: of what, at which step, with which result."""

    name: str
    step: int
    metrics: Mapping[str, float]


@frozen
class EpisodeRow:
    """The outcome of one episode; its words are in the trace at `uri`."""

    id: str
    task_id: str
    purpose: str
    outcome: str
    cause: str | None
    reward: float
    stop: str | None
    uri: str | None
    time_s: float


@define
class History:
    """The fold; `add` records in the order in which they happened."""

    KINDS: ClassVar[frozenset[str]]
    """Events that change a history; all others may be left out."""

    name: str = ""
    status: str = "running"
    """running (or killed without a word), finished, interrupted or failed."""
    plugins: tuple[str, ...] = ()
    starts: int = 0
    """Times the run was started: 1 and its resumes."""
    spans: list[list[float]] = Factory(list)
    """[start, last event] of each start."""
    stages: dict[str, StageLog] = Factory(dict)
    evaluations: dict[tuple[str, int], Evaluation] = Factory(dict)
    episodes: dict[str, EpisodeRow] = Factory(dict)
    """By purpose and id."""
    faults: Counter[tuple[str, str, str]] = Factory(Counter)
    """(where, plugin, error) -> times."""
    versions: int = 0
    """Sets of weights published."""
    summary: Mapping[str, Any] = Factory(dict)
    group_scores: dict[str, tuple[Score, ...]] = Factory(dict)
    """Id of an episode -> what rewards of scope "group" gave it; its trace holds the others."""
    _open: StageLog | None = None
    _now_s: float = 0.0
    """Latest time told; events without a time happened then."""

    @classmethod
    def read(cls, run_dir: Path) -> History:
        """From a run folder; empty when it holds no events."""
        return cls().extend(read_events(run_dir))

    def extend(self, records: Iterable[Record]) -> History:
        for record in records:
            self.add(record)
        return self

    def add(self, record: Record) -> None:
        now = self._now_s = max(self._now_s, record["time_s"])
        handler = _HANDLERS.get(record["event"])
        if handler is not None:
            handler(self, record)
        for spans in (self.spans, self._open.spans if self._open else []):
            if spans:
                spans[-1][1] = now

    @property
    def spent_s(self) -> float:
        """Wall time over all starts."""
        return sum(last - start for start, last in self.spans)

    def outcomes(self) -> dict[str, Counter[str]]:
        """Purpose -> how many episodes had each outcome; voids are named with their cause."""
        counts: dict[str, Counter[str]] = {}
        for row in self.episodes.values():
            name = f"void: {row.cause}" if row.outcome == "void" else row.outcome
            counts.setdefault(row.purpose, Counter())[name] += 1
        return counts

    def latest(self) -> list[Evaluation]:
        """The last evaluation of each name, in order of first appearance."""
        return list({entry.name: entry for entry in self.evaluations.values()}.values())

    def _stage(self, name: str) -> StageLog:
        return self.stages.setdefault(name, StageLog(name))

    def _run_started(self, record: Record) -> None:
        self.name, self.status, self.plugins = record["name"], "running", tuple(record["plugins"])
        self.starts += 1
        self.spans.append([self._now_s, self._now_s])
        self._open = None

    def _stage_started(self, record: Record) -> None:
        stage = self._open = self._stage(record["stage"])
        stage.kind, stage.steps, stage.ended = record["kind"], record["steps"], False
        stage.spans.append([self._now_s, self._now_s])

    def _stage_ended(self, record: Record) -> None:
        stage = self._stage(record["stage"])
        stage.ended, stage.summary = True, record["summary"]
        if stage.spans:
            stage.spans[-1][1] = self._now_s
        self._open = None

    def _step_ended(self, record: Record) -> None:
        self._stage(record["stage"]).metrics[record["step"]] = record["metrics"]

    def _evaluated(self, record: Record) -> None:
        entry = Evaluation(record["name"], record["step"], record["metrics"])
        self.evaluations[entry.name, entry.step] = entry

    def _episode_ended(self, record: Record) -> None:
        result = record["result"]
        key, verdict, trace = result["key"], result["verdict"], result["trace"]
        row = EpisodeRow(
            id=SlotKey(**key).episode_id,
            task_id=key["task_id"],
            purpose=record["purpose"],
            outcome=str(verdict["outcome"]),
            cause=verdict["cause"],
            reward=result["reward"],
            stop=result["stop"],
            uri=trace["uri"] if trace else None,
            time_s=self._now_s,
        )
        self.episodes[f"{row.purpose}/{row.id}"] = row

    def _group_scored(self, record: Record) -> None:
        for id, scores in zip(record["episodes"], record["group_scores"], strict=False):
            self.group_scores[id] = tuple(Score(**score) for score in scores)

    def _fault_recorded(self, record: Record) -> None:
        fault = record["fault"]
        self.faults[fault["where"], fault["plugin"], fault["error"]] += 1

    def _plugin_failed(self, record: Record) -> None:
        self.faults["plugin", record["plugin"], record["error"]] += 1

    def _weights_published(self, record: Record) -> None:
        self.versions += 1

    def _run_ended(self, record: Record) -> None:
        self.status, self.summary = record["status"], record["summary"]
        self._open = None


_HANDLERS = {
    "RunStarted": History._run_started,
    "StageStarted": History._stage_started,
    "StageEnded": History._stage_ended,
    "StepEnded": History._step_ended,
    "Evaluated": History._evaluated,
    "EpisodeEnded": History._episode_ended,
    "GroupScored": History._group_scored,
    "FaultRecorded": History._fault_recorded,
    "PluginFailed": History._plugin_failed,
    "WeightsPublished": History._weights_published,
    "RunEnded": History._run_ended,
}
"""Event name -> how it changes the history."""
History.KINDS = frozenset(_HANDLERS)


BEHAVIOR = (
    "solve_rate", "best_of_8", "turns_mean", "calls_mean", "tokens_mean", "parallel_width", "truncated_share",
    "no_call_share", "bad_call_share", "refused_share",
)  # fmt: skip
"""Metrics of an evaluation that say how a policy acts; shares of tools follow them."""


def changed(entries: Iterable[Evaluation]) -> tuple[str, list[tuple[str, float, float]]]:
    """What the policy does differently: (metric, before, after) of the first case evaluated at both moments.

    No rows when there is no such case.
    """
    arms: dict[str, dict[str, Mapping[str, float]]] = {}
    for entry in entries:
        arm, _, case = entry.name.partition("/")
        arms.setdefault(case, {})[arm] = entry.metrics
    case = next((case for case, found in arms.items() if {"before", "after"} <= set(found)), "")
    if not case:
        return "", []
    before, after = arms[case]["before"], arms[case]["after"]
    tools = sorted({name for name in (*before, *after) if name.startswith("tool/")})
    names = [*(name for name in BEHAVIOR if name in before and name in after), *tools]
    return case, [(name, before.get(name, 0.0), after.get(name, 0.0)) for name in names]
