"""What happened over time, in a fixed number of buckets: when a run outgrows them, neighbors are merged.

Time is the run's own: seconds during which some process ran it, so a night between a kill and a resume has no width.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from attrs import Factory, define, field

BUCKETS = 240
RECENT_S = 60
SUMS = ("episodes", "voids", "tokens", "steps")


@define
class Bucket:
    """What happened in a stretch of time."""

    episodes: int = 0
    """That ended, void ones too."""
    voids: int = 0
    tokens: float = 0.0
    """Sampled by episodes that ended."""
    steps: int = 0
    staleness: float | None = None
    """Largest of a step's groups, in versions."""
    running: int | None = None
    """Most episodes under way at once."""

    def merge(self, other: Bucket) -> Bucket:
        sums = {name: getattr(self, name) + getattr(other, name) for name in SUMS}
        return Bucket(
            **sums, staleness=_most(self.staleness, other.staleness), running=_most(self.running, other.running)
        )


@define
class Series:
    """Buckets of the whole run, and rates of its last minute."""

    width_s: float = 1.0
    buckets: list[Bucket] = Factory(list)
    now_s: float = 0.0
    """The latest moment told."""
    _running: int | None = None
    """Episodes under way now; None before the first."""
    _recent: deque[tuple[int, Counter[str]]] = field(factory=deque)
    """Counts of each second of the last minute in which something happened."""

    def add(self, at_s: float, **amounts: float) -> None:
        """Add counts (`SUMS`) to the bucket of a moment."""
        bucket, second = self.at(at_s), int(self.now_s)
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append((second, Counter()))
        for name, amount in amounts.items():
            setattr(bucket, name, getattr(bucket, name) + amount)
            self._recent[-1][1][name] += amount  # type: ignore[assignment]  # tokens are floats

    def run(self, at_s: float, running: int) -> None:
        """So many episodes are under way from this moment on."""
        bucket = self.at(at_s)
        bucket.running, self._running = max(bucket.running or 0, running), running

    def at(self, at_s: float) -> Bucket:
        """The bucket of a moment; earlier than the latest one is taken for that."""
        self.now_s = max(self.now_s, at_s)
        while self._recent and self._recent[0][0] <= self.now_s - RECENT_S:
            self._recent.popleft()
        while self.now_s // self.width_s >= BUCKETS:
            self._widen()
        place = int(self.now_s // self.width_s)
        while len(self.buckets) <= place:
            self.buckets.append(Bucket(running=self._running))
        return self.buckets[place]

    def _widen(self) -> None:
        self.width_s *= 2
        pairs = [self.buckets[at : at + 2] for at in range(0, len(self.buckets), 2)]
        self.buckets = [pair[0].merge(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]

    def rate(self, name: str) -> float:
        """A count for each second of the last minute, or of the time since the start where that is less."""
        total = sum(counts[name] for _, counts in self._recent)
        return total / min(RECENT_S, max(1.0, self.now_s))

    def to_json(self) -> dict[str, Any]:
        """The buckets as columns; the last one may be under way still."""
        names = (*SUMS, "staleness", "running")
        return {"width_s": self.width_s, "now_s": self.now_s} | {
            name: [getattr(bucket, name) for bucket in self.buckets] for name in names
        }


def _most(one: Any, other: Any) -> Any:
    found = [value for value in (one, other) if value is not None]
    return max(found, default=None)
