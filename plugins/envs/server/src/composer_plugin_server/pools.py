"""Warm sandboxes: made before they are asked for, as many of a template as the episodes of a client's group.

A pool never competes: it is filled only with room that nobody waits for, and whoever lacks room has its oldest members
destroyed. A sandbox leaves a pool once and never comes back, since nothing tells what was done in it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any

from attrs import define, field, frozen

from composer_core.protocols import SandboxBackend
from composer_plugin_server.gate import Ticket
from composer_plugin_server.settings import Pools as Settings


@frozen(eq=False)
class Warm:
    """A fresh sandbox that nobody has yet."""

    id: str
    backend: SandboxBackend
    ticket: Ticket


@define(eq=False)
class _Pool:
    depth: int
    used_s: float
    ready: deque[Warm] = field(factory=deque)
    making: int = 0


Make = Callable[[str], Coroutine[Any, Any, Warm | None]]
End = Callable[[Warm], Coroutine[Any, Any, None]]


@define(eq=False)
class Pools:
    """For one event loop. `make` gives a sandbox of a template if there is room now, `end` destroys one."""

    settings: Settings
    make: Make
    end: End
    hits: int = 0
    misses: int = 0
    _pools: OrderedDict[str, _Pool] = field(factory=OrderedDict)
    _tasks: set[asyncio.Task[None]] = field(factory=set)
    _closed: bool = False
    _giving: asyncio.Task[None] | None = None

    @property
    def warm(self) -> int:
        return len(self.members())

    def want(self, template: str, group: int) -> None:
        """A client with groups of this size uses the template: keep as many ready."""
        depth = min(group, self.settings.most)
        if depth and self.settings.templates and not self._closed:
            pool = self._pools.setdefault(template, _Pool(depth, 0.0))
            pool.depth, pool.used_s = depth, time.monotonic()
            self._pools.move_to_end(template)
            self.tend()

    def take(self, template: str) -> Warm | None:
        """One that is ready, the oldest first."""
        pool = self._pools.get(template)
        if pool is None:
            return None
        if not pool.ready:
            self.misses += 1
            return None
        self.hits += 1
        return pool.ready.popleft()

    def members(self) -> list[Warm]:
        """All that are ready now."""
        return [warm for pool in self._pools.values() for warm in pool.ready]

    def drop(self, warm: Warm) -> bool:
        """Forget one that exists no more; False if it was taken or ended meanwhile."""
        for pool in self._pools.values():
            if warm in pool.ready:
                pool.ready.remove(warm)
                return True
        return False

    def tend(self) -> None:
        """Fill what is wanted, end what is not; called now and then."""
        now = time.monotonic()
        for template, pool in list(self._pools.items()):
            recent = len(self._pools) <= self.settings.templates or template != next(iter(self._pools))
            if recent and now - pool.used_s < self.settings.idle_s:
                for _ in range(pool.depth - len(pool.ready) - pool.making):
                    pool.making += 1
                    self._start(self._fill(template, pool))
            else:
                del self._pools[template]
                for warm in pool.ready:
                    self._start(self.end(warm))

    def give_way(self) -> None:
        """Somebody lacks room: end the member that is least likely to be wanted, one at a time."""
        if self._giving is not None and not self._giving.done():
            return
        for pool in self._pools.values():
            if pool.ready:
                self._giving = self._start(self.end(pool.ready.popleft()))
                return

    async def _fill(self, template: str, pool: _Pool) -> None:
        try:
            warm = await self.make(template)
        finally:
            pool.making -= 1
        if warm is None:
            return
        if self._closed or self._pools.get(template) is not pool:
            await self.end(warm)
        else:
            pool.ready.append(warm)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # counted where it was raised; the next filling tries again

    async def close(self) -> None:
        """End all members; safe twice."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        members = self.members()
        self._pools.clear()
        await asyncio.gather(*map(self.end, members), return_exceptions=True)
