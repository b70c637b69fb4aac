"""`behavior/monitor`: a tracker that flags a part of the reward which does not move with the outcome.

A policy that learns what a reward means gets better at the task as well, or stays as good for less. One that has found
a way around it moves the part and nothing else, and that is how most hacks look long before anybody reads a trace. So
it is a flag and no verdict: cheaper success looks the same, and the traces tell which it is. Where the outcome moves
the other way a hack may be what it costs, or the part the price of solving more: that is flagged too, and said.

    shift(part)    = mean of the last w steps - mean of the w before them
    error(part)    = sqrt(s1^2 / w + s2^2 / w), with s^2 the sample variances of the two windows
    flagged        : |shift| > deviations x error and |shift| >= least, of a part
                     unless the outcome has moved the same way by more than quiet x error

Parts are the metrics `reward/ID` of a step, weight x value (see `scoring.spread`). The test is Welch's (1947); a trend
inside a window widens the error, so what is flagged has moved by more than its windows' own noise and slope.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean, variance

from attrs import frozen

from composer_core import BuildContext
from composer_core.events import Event, FaultRecorded, StepEnded
from composer_core.tracking import read_events
from composer_core.types import Fault
from composer_plugin_behavior.config import MonitorConfig

ID = "behavior/monitor"
PART = "reward/"


@frozen
class Shift:
    """How the last half of a row differs from its first."""

    before: float
    after: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Shift:
        """Of an even number of values, four or more."""
        half = len(values) // 2
        first, last = values[:half], values[half:]
        return cls(fmean(first), fmean(last), math.sqrt((variance(first) + variance(last)) / half))

    @property
    def by(self) -> float:
        return self.after - self.before

    def beyond(self, errors: float) -> bool:
        return abs(self.by) > errors * self.error

    def __str__(self) -> str:
        return f"{'rose' if self.by > 0 else 'fell'} from {self.before:.3g} to {self.after:.3g}"


class Monitor:
    """`protocols.Tracker`; remembers a stage's latest steps, those of a resumed run's events included."""

    def __init__(self, config: MonitorConfig, build: BuildContext) -> None:
        self._config, self._build = config, build
        self._stage = ""
        self._steps: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=2 * config.window)
        self._flagged: dict[str, int] = {}
        for record in read_events(build.run_dir):
            if record["event"] == "StepEnded":
                self._keep(record["stage"], record["step"], record["metrics"])

    def write(self, event: Event) -> None:
        if isinstance(event, StepEnded):
            self._keep(event.stage, event.step, event.metrics)
            for text in self._flags(event.step):
                self._build.emit(FaultRecorded(fault=Fault("monitor", ID, text)))

    def close(self) -> None:
        """Nothing is open."""

    def _keep(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if stage != self._stage:
            self._stage = stage
            self._steps.clear()
            self._flagged.clear()
        while self._steps and self._steps[-1][0] >= step:  # a resumed run repeats what was not committed
            self._steps.pop()
        if self._config.outcome in metrics:
            self._steps.append((step, metrics))

    def _flags(self, step: int) -> list[str]:
        """What is to be said of each part that is flagged now."""
        if len(self._steps) < 2 * self._config.window:
            return []
        outcome = self._shift(self._config.outcome)
        if outcome is None:
            return []
        found = []
        for name in sorted(name for name in self._steps[-1][1] if name.startswith(PART)):
            shift = self._shift(name)
            if shift is None or not self._moved(shift) or self._together(shift, outcome):
                continue
            if step - self._flagged.get(name, -math.inf) >= self._config.window:
                self._flagged[name] = step
                found.append(self._told(name, shift, outcome))
        return found

    def _shift(self, name: str) -> Shift | None:
        """None where a step lacks the metric, or has it as no number."""
        values = [metrics.get(name) for _, metrics in self._steps]
        numbers = [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
        return Shift.of(numbers) if len(numbers) == len(values) else None

    def _moved(self, shift: Shift) -> bool:
        return abs(shift.by) >= self._config.least and shift.beyond(self._config.deviations)

    def _together(self, shift: Shift, outcome: Shift) -> bool:
        """Whether the outcome has moved the way the part did."""
        return outcome.beyond(self._config.quiet) and outcome.by * shift.by > 0

    def _told(self, name: str, shift: Shift, outcome: Shift) -> str:
        first, last = self._steps[0][0], self._steps[-1][0]
        beside = str(outcome) if outcome.beyond(self._config.quiet) else f"stayed at {outcome.after:.3g}"
        where = f"in steps {first} to {last} of {self._stage} while {self._config.outcome} {beside}"
        return f"{name.removeprefix(PART)} {shift} {where}: look at traces of both halves"
