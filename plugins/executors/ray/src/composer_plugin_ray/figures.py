"""What the run's processes count, added up. Each tells its counters with its answers; the last word of one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from composer_core.events import Event
from composer_plugin_ray.line import Numbered, newer
from composer_plugin_ray.worker import WorkerNote

GAUGES = ("_p50_", "_p99_", "version")
"""Parts of names whose values cannot be added; of these the largest is told."""


class Figures:
    """Counters of all processes there are or were."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._workers: dict[str, Numbered] = {}
        self._replicas: dict[str, Numbered] = {}

    def worker(self, name: str) -> Callable[[WorkerNote], None]:
        """Takes that worker's notes."""

        def take(note: WorkerNote) -> None:
            for event in note.events:
                self._emit(event)
            self._workers[name] = newer(self._workers.get(name), note.stats)
            for replica, stats in note.replicas.items():
                self._replicas[replica] = newer(self._replicas.get(replica), stats)

        return take

    def stats(self) -> Mapping[str, float]:
        """Of all together; those of the samplers as `sampler/NAME`."""
        sampler = added(note.value for note in self._replicas.values())
        workers = added(note.value for note in self._workers.values())
        return {**workers, **{f"sampler/{name}": value for name, value in sampler.items()}}


def by_process(pid: Mapping[str, float], **figures: Mapping[str, float]) -> dict[str, float]:
    """`worker/worker-0.1/pid` and so on of those with a process id, from each figure by name of the process."""
    columns = {"pid": pid, **figures}
    return {
        f"{name.partition('-')[0]}/{name}/{figure}": float(values[name])
        for name in pid
        for figure, values in columns.items()
        if name in values
    }


def added(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            one = found.get(name, 0.0)
            found[name] = max(one, value) if any(part in name for part in GAUGES) else one + value
    return found
