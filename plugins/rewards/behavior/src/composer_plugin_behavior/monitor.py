"""`behavior/monitor`: a tracker that flags a part of the reward which moves while the outcome does not.

A policy that learns what a reward means gets better at the task as well, or stays as good for less. One that has found
a way around it moves the part and nothing else, and that is how most hacks look long before anybody reads a trace. So
it is a flag and no verdict: cheaper success looks the same, and the traces tell which it is.

    shift(part)    = mean of the last w steps - mean of the w before them
    error(part)    = sqrt(s1^2 / w + s2^2 / w), with s^2 the sample variances of the two windows
    flagged        : |shift| > deviations x error and |shift| >= least, of a part
                     and |shift| <= quiet x error, of the outcome

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

    def beyond(self, errors: float) -> bool:
        return abs(self.after - self.before) > errors * self.error


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
        if outcome is None or outcome.beyond(self._config.quiet):
            return []
        found = []
        for name in sorted(name for name in self._steps[-1][1] if name.startswith(PART)):
            shift = self._shift(name)
            if shift and self._moved(shift) and step - self._flagged.get(name, -math.inf) >= self._config.window:
                self._flagged[name] = step
                found.append(self._told(name, shift, outcome))
        return found

    def _shift(self, name: str) -> Shift | None:
        """None where a step lacks the metric, or has it as no number."""
        values = [metrics.get(name) for _, metrics in self._steps]
        numbers = [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
        return Shift.of(numbers) if len(numbers) == len(values) else None

    def _moved(self, shift: Shift) -> bool:
        return abs(shift.after - shift.before) >= self._config.least and shift.beyond(self._config.deviations)

    def _told(self, name: str, shift: Shift, outcome: Shift) -> str:
        first, last = self._steps[0][0], self._steps[-1][0]
        how = "rose" if shift.after > shift.before else "fell"
        moved = f"{name.removeprefix(PART)} {how} from {shift.before:.3g} to {shift.after:.3g}"
        still = f"{self._config.outcome} stayed at {outcome.after:.3g}"
        return f"{moved} in steps {first} to {last} of {self._stage} while {still}: look at traces of both halves"
