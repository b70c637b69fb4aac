"""A clock that moves only when told to.

For whatever takes an injected clock: `time` stands in for `time.time`, `sleep` for `asyncio.sleep`. Nothing ever waits
for real, so tests of time-outs, leases and rates are exact and instant. One event loop at a time.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

SETTLE_TURNS = 20
"""Turns of the event loop granted to woken tasks before the clock moves on in `run`."""


class FakeClock:
    """Seconds that pass on demand."""

    def __init__(self, start_s: float = 1_000_000.0) -> None:
        self._now_s = start_s
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def time(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has advanced by `seconds`; at once (one turn of the loop) if that is not positive."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_s + seconds, next(self._order), wake))
        await wake

    def advance(self, seconds: float) -> None:
        """Move on and wake whoever is due, earliest first; they run when the event loop next turns."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards, asked for {seconds} s")
        self._now_s += seconds
        self._wake()

    async def run(self, seconds: float) -> None:
        """Advance in the steps at which sleepers wake, letting each run (and sleep again) at its own time."""
        end_s = self._now_s + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end_s:
            self._now_s = max(self._now_s, self._sleepers[0][0])
            self._wake()
            await self._settle()
        self._now_s = end_s

    def sleeping(self) -> int:
        """How many tasks wait for this clock."""
        return sum(not wake.done() for _, _, wake in self._sleepers)

    def _wake(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._now_s:
            _, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():  # a cancelled sleeper is done already
                wake.set_result(None)

    async def _settle(self) -> None:
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
