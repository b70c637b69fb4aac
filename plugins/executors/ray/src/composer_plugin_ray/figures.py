"""What the run's processes count, added up. Each tells its counters with its answers; the last word of one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from composer_core.events import Event
from composer_plugin_ray.worker import WorkerNote


class Figures:
    """Counters of all processes there are or were."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._workers: dict[str, WorkerNote] = {}
        self._replicas: dict[str, Mapping[str, float]] = {}

    def worker(self, name: str) -> Callable[[WorkerNote], None]:
        """Takes that worker's notes."""

        def take(note: WorkerNote) -> None:
            for event in note.events:
                self._emit(event)
            known = self._workers.get(name)
            if known is None or note.number > known.number:
                self._workers[name] = note
                self._take_replicas(note)

        return take

    def _take_replicas(self, note: WorkerNote) -> None:
        """Several workers tell of one replica; its counters only grow, so the largest is the latest."""
        for name, stats in note.replicas.items():
            known = self._replicas.get(name, {})
            if sum(stats.values()) >= sum(known.values()):
                self._replicas[name] = stats

    def stats(self) -> Mapping[str, float]:
        """Sums of counters; medians and percentiles cannot be added, so of these the worst."""
        sampler = {f"sampler/{name}": value for name, value in added(self._replicas.values()).items()}
        return {**added(note.stats for note in self._workers.values()), **sampler}


def added(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            one = found.get(name, 0.0)
            found[name] = max(one, value) if "_p50_" in name or "_p99_" in name or name == "version" else one + value
    return found
