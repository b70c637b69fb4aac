"""How long calls to a sandbox may take, when the sandbox can be paused: the time in which it is does not count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Patience:
    """For one event loop. `pause` and `resume` are safe twice."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._left_s: dict[asyncio.Timeout, float] = {}
        self._stood_s = self._since_s = 0.0
        self._going = asyncio.Event()
        self._going.set()

    @property
    def paused(self) -> bool:
        return not self._going.is_set()

    def time(self) -> float:
        """Seconds of a clock that stands still while it is paused."""
        return (self._since_s if self.paused else asyncio.get_running_loop().time()) - self._stood_s

    async def going(self) -> None:
        """Wait until it is not paused."""
        await self._going.wait()

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """What takes longer than this raises TimeoutError."""
        async with asyncio.timeout(seconds) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)
                self._left_s.pop(limit, None)

    def pause(self) -> None:
        if self.paused:
            return
        self._going.clear()
        now = self._since_s = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                self._left_s[limit] = (limit.when() or now) - now
                limit.reschedule(None)

    def resume(self) -> None:
        if not self.paused:
            return
        now = asyncio.get_running_loop().time()
        self._stood_s += now - self._since_s
        left, self._left_s = self._left_s, {}
        for limit, seconds in left.items():
            limit.reschedule(now + seconds)
        self._going.set()
