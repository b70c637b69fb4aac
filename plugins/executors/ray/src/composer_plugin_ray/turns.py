"""First come, first served: episodes that wait until a process has room."""

from __future__ import annotations

import asyncio
from collections import deque

from attrs import Factory, define


@define
class Turns:
    """Who waits, in order."""

    _waiting: deque[asyncio.Future[None]] = Factory(deque)

    async def wait(self) -> None:
        """Until it is this one's turn to look again."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.next()  # it was called and will not come
            raise

    def next(self) -> None:
        """The first that still waits."""
        while self._waiting:
            one = self._waiting.popleft()
            if not one.done():
                return one.set_result(None)
        return None

    def all(self) -> None:
        for _ in range(len(self._waiting)):
            self.next()
