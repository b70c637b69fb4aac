"""What events.jsonl tells of a run, folded into figures whose size does not grow with the run.

`composer_core.history` keeps a row for each episode, which a page of results needs and a view that stays open for days
cannot afford. Here are counts, the episodes under way, and a series of fixed length. An event that does not fit
(another version, a damaged line) is counted and passed over: a view is needed most when something is wrong with a run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import Factory, define

from composer_core.types import SlotKey
from composer_plugin_top.series import Series

MOST_NAMES = 40
"""Different names kept of a count, and faults kept; what comes after is counted as "others"."""
ERROR_CHARS = 300
OTHERS = "others"

Record = Mapping[str, Any]


@define
class Stage:
    """The stage that began last."""

    name: str
    kind: str
    steps: int | None
    began_s: float
    """In the run's own time."""
    step: int = 0
    first_step: int = 0
    """Steps that were done when this process began with it."""
    ended: bool = False
    metrics: Mapping[str, float] = Factory(dict)
    """Of its last step."""


@define
class Seen:
    """A fault, however often it happened."""

    times: int = 0
    error: str = ""
    """Of the last time."""


@define
class Fold:
    """See the module's docstring; `add` lines in the order in which they were written."""

    name: str = ""
    status: str = "running"
    """running (or killed without a word), finished, interrupted or failed."""
    starts: int = 0
    stage: Stage | None = None
    last_s: float = 0.0
    """When the latest event happened, in seconds since the Unix epoch."""
    series: Series = Factory(Series)
    outcomes: Counter[str] = Factory(Counter)
    """Of episodes of every purpose; voids are named with their cause."""
    purposes: Counter[str] = Factory(Counter)
    faults: dict[tuple[str, str], Seen] = Factory(dict)
    """By (where, plugin)."""
    evaluated: dict[str, float] = Factory(dict)
    """Latest solve rate by evaluation."""
    version: int | None = None
    """Of the weights published last."""
    unreadable: int = 0
    """Lines that are no event as this version knows them."""
    _running: set[str] = Factory(set)
    _before_s: float = 0.0
    """The run's own time up to its latest start."""
    _started_s: float = 0.0

    def add_lines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line.startswith(_PASSED):
                continue
            try:
                record = json.loads(line)
                handler = _HANDLERS.get(record["event"])
                self._clock(record)
                if handler is not None:
                    handler(self, record)
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                self.unreadable += 1

    @property
    def run_s(self) -> float:
        """Seconds during which some process ran this, up to the latest event."""
        return self._before_s + max(0.0, self.last_s - self._started_s)

    def _clock(self, record: Record) -> None:
        if record["event"] == "RunStarted":
            self._before_s = self.run_s if self.starts else 0.0
            self._started_s = self.last_s = float(record["time_s"])
        self.last_s = max(self.last_s, float(record["time_s"]))

    # --- events -------------------------------------------------------------------------------------------------------

    def _run_started(self, record: Record) -> None:
        self.name, self.status = str(record["name"]), "running"
        self.starts += 1
        self._running.clear()
        self._count_running()

    def _stage_started(self, record: Record) -> None:
        steps = record["steps"]
        self.stage = Stage(str(record["stage"]), str(record["kind"]), None if steps is None else int(steps), self.run_s)

    def _stage_ended(self, record: Record) -> None:
        """Whatever it had under way is nobody's any more."""
        if self.stage is not None:
            self.stage.ended = True
        self._running.clear()
        self._count_running()

    def _episode_started(self, record: Record) -> None:
        self._running.add(str(record["episode_id"]))
        self._count_running()

    def _episode_ended(self, record: Record) -> None:
        result = record["result"]
        verdict, tokens = result["verdict"], float(result["stats"].get("tokens", 0.0))
        void = verdict["outcome"] == "void"
        _count(self.outcomes, f"void: {verdict['cause']}" if void else str(verdict["outcome"]))
        _count(self.purposes, str(record["purpose"]))
        self.series.add(self.run_s, episodes=1, voids=int(void), tokens=tokens)
        self._running.discard(SlotKey(**result["key"]).episode_id)
        self._count_running()

    def _episode_cancelled(self, record: Record) -> None:
        self._running.discard(str(record["episode_id"]))
        self._count_running()

    def _count_running(self) -> None:
        self.series.run(self.run_s, len(self._running))

    def _step_ended(self, record: Record) -> None:
        stage = self.stage
        if stage is None or stage.name != record["stage"]:
            stage = self.stage = Stage(str(record["stage"]), "", None, self.run_s)
        steps = record["steps"]
        stage.steps = stage.steps if steps is None else int(steps)
        if not stage.step:
            stage.first_step = int(record["step"]) - 1
        stage.step = int(record["step"])
        stage.metrics = {str(k): float(v) for k, v in record["metrics"].items() if isinstance(v, (int, float))}
        self.series.add(self.run_s, steps=1)
        if (staleness := stage.metrics.get("staleness_max")) is not None:
            bucket = self.series.at(self.run_s)
            bucket.staleness = max(bucket.staleness or 0.0, staleness)

    def _evaluated(self, record: Record) -> None:
        rate = record["metrics"].get("solve_rate")
        if isinstance(rate, (int, float)) and (record["name"] in self.evaluated or len(self.evaluated) < MOST_NAMES):
            self.evaluated[str(record["name"])] = float(rate)

    def _fault_recorded(self, record: Record) -> None:
        fault = record["fault"]
        self._fault(str(fault["where"]), str(fault["plugin"]), str(fault["error"]))

    def _plugin_failed(self, record: Record) -> None:
        self._fault("plugin", str(record["plugin"]), str(record["error"]))

    def _fault(self, where: str, plugin: str, error: str) -> None:
        key = (where, plugin)
        if key not in self.faults and len(self.faults) >= MOST_NAMES:
            key = (OTHERS, "")
        seen = self.faults.setdefault(key, Seen())
        seen.times, seen.error = seen.times + 1, error[:ERROR_CHARS]

    def _published(self, record: Record) -> None:
        self.version = int(record["weights"]["version"])

    def _run_ended(self, record: Record) -> None:
        self.status = str(record["status"])
        self._running.clear()
        self._count_running()


def _count(counts: Counter[str], name: str) -> None:
    counts[name if name in counts or len(counts) < MOST_NAMES else OTHERS] += 1


_HANDLERS: dict[str, Callable[[Fold, Record], None]] = {
    "RunStarted": Fold._run_started,
    "StageStarted": Fold._stage_started,
    "StageEnded": Fold._stage_ended,
    "EpisodeStarted": Fold._episode_started,
    "EpisodeEnded": Fold._episode_ended,
    "EpisodeCancelled": Fold._episode_cancelled,
    "StepEnded": Fold._step_ended,
    "Evaluated": Fold._evaluated,
    "FaultRecorded": Fold._fault_recorded,
    "PluginFailed": Fold._plugin_failed,
    "WeightsPublished": Fold._published,
    "RunEnded": Fold._run_ended,
}
_PASSED = tuple(f'{{"event":"{name}"'.encode() for name in ("TurnEnded", "GroupScored", "ContextCompacted"))
"""How lines begin that are many and tell nothing here; they are not even parsed."""
