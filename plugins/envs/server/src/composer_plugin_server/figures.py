"""What the page and Prometheus are told: latencies, counts, and the states of sandboxes over time.

Figures are of this node since its server started. Series hold a point a second for the last ten minutes.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import Any

from attrs import asdict, define, field, frozen

from composer_plugin_server.machine import Pressure

KEPT_TIMES, POINTS = 4096, 600
ACTS = ("create", "fork", "exec", "wait")
STATES = ("waiting", "starting", "warm", "idle", "busy", "paused", "ending")
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@frozen
class Point:
    """One second: sandboxes by state, and the node's load."""

    at_s: float
    states: tuple[int, ...]
    """In the order of `STATES`."""
    pressure: Pressure | None = None


@define(eq=False)
class Figures:
    started_s: float = field(factory=time.time)
    times_s: dict[str, deque[float]] = field(factory=lambda: {act: deque(maxlen=KEPT_TIMES) for act in ACTS})
    done: Counter[str] = field(factory=Counter)
    """Acts that ended well, by name."""
    total_s: defaultdict[str, float] = field(factory=lambda: defaultdict(float))
    """The time that timed acts took since the start."""
    failed: Counter[str] = field(factory=Counter)
    """Acts that failed, by name."""
    counts: Counter[str] = field(factory=Counter)
    """orphans_reaped, leases_expired, sandboxes_expired, vanished, stuck."""
    points: deque[Point] = field(factory=lambda: deque(maxlen=POINTS))

    def took(self, act: str, seconds: float) -> None:
        self.done[act] += 1
        self.total_s[act] += seconds
        self.times_s[act].append(seconds)

    def percentiles(self) -> dict[str, dict[str, float | int]]:
        """Milliseconds of the newest acts of each kind; kinds that never happened are left out."""
        found: dict[str, dict[str, float | int]] = {}
        for act, times in self.times_s.items():
            if times:
                ordered = sorted(times)
                shown = {name: ordered[int(share * (len(ordered) - 1))] * 1e3 for name, share in SHARES.items()}
                found[act] = {**shown, "count": self.done[act]}
        return found

    def add(self, states: Mapping[str, int], pressure: Pressure | None) -> None:
        self.points.append(Point(time.time(), tuple(states.get(name, 0) for name in STATES), pressure))

    def series(self, since_s: float = 0.0) -> list[dict[str, Any]]:
        """Points after a moment."""
        return [
            {"at_s": point.at_s, "states": list(point.states), "pressure": asdict(point.pressure)}
            for point in self.points
            if point.at_s > since_s and point.pressure is not None
        ]
