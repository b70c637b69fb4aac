"""Scalars for TensorBoard, written with the tensorboard package alone (protobufs and its record writer, no torch).

Tags are "<stage>/<metric>" over steps, "evaluation/<name>/<metric>" over steps (evaluations made
during training share one tag), and "episodes/<purpose>/<metric>" over
episodes, where each point averages the last `episodes_every`. A resumed run adds a file to the same folder; TensorBoard
itself lets repeated steps replace what they repeat.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from composer_core.events import EpisodeEnded, Evaluated, Event, StepEnded
from composer_core.protocols import BuildContext
from composer_core.types import EpisodeResult
from composer_plugin_report.config import DURING, TensorboardConfig


class TensorboardTracker:
    """`protocols.Tracker`; its file appears with the first event that has a number."""

    def __init__(self, config: TensorboardConfig, build: BuildContext) -> None:
        self._config = config
        self._folder = build.run_dir / config.folder
        self._writer: EventFileWriter | None = None
        self._now_s = 0.0
        self._pending: dict[str, list[EpisodeResult]] = defaultdict(list)
        self._ended: dict[str, int] = defaultdict(int)

    def write(self, event: Event) -> None:
        self._now_s = max(self._now_s, event.time_s)
        if isinstance(event, StepEnded):
            self._scalars(event.stage, event.metrics, event.step)
        elif isinstance(event, Evaluated):
            arm, _, case = event.name.partition("/")
            during = DURING.fullmatch(arm)
            name, step = (f"during/{case}", int(during[1])) if during else (event.name, event.step)
            self._scalars(f"evaluation/{name}", event.metrics, step)
        elif isinstance(event, EpisodeEnded):
            self._episode(event)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _episode(self, event: EpisodeEnded) -> None:
        rows = self._pending[event.purpose]
        rows.append(event.result)
        self._ended[event.purpose] += 1
        if len(rows) >= self._config.episodes_every:
            self._scalars(f"episodes/{event.purpose}", averages(rows), self._ended[event.purpose])
            rows.clear()

    def _scalars(self, prefix: str, metrics: Mapping[str, float], step: int) -> None:
        values = [
            Summary.Value(tag=_safe(f"{prefix}/{name}"), simple_value=value)
            for name, value in metrics.items()
            if isinstance(value, (int, float)) and abs(value) < 3e38  # what a 32-bit float holds
        ]
        if values:
            if self._writer is None:
                self._writer = EventFileWriter(str(self._folder))
            self._writer.add_event(Record(wall_time=self._now_s, step=step, summary=Summary(value=values)))


def averages(results: list[EpisodeResult]) -> dict[str, float]:
    """Shares of outcomes over all, means of reward and stats over the valid; voids are counted, never mixed in."""
    valid = [result for result in results if result.verdict.valid]
    found = {"void_share": 1 - len(valid) / len(results)}
    if valid:
        found["reward_mean"] = math.fsum(result.reward for result in valid) / len(valid)
        found["solve_rate"] = sum(result.verdict.solved for result in valid) / len(valid)
        for name in dict.fromkeys(name for result in valid for name in result.stats):
            values = [result.stats[name] for result in valid if name in result.stats]
            found[f"stats/{name}"] = math.fsum(values) / len(values)
    return found


def _safe(tag: str) -> str:
    return tag.encode("utf-8", "backslashreplace").decode()
