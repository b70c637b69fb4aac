"""What happens between requests: leases that were not kept end, pools are tended, the line moves, figures are taken.

A reconcile compares what should exist with what the provider still knows, and tries again what could not be destroyed.
It looks only at what this server has made; whatever else the provider, the engine or the machine holds is not asked
for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from attrs import define, field

from composer_core.errors import SandboxGone
from composer_plugin_server.leases import Lease, Owned
from composer_plugin_server.node import Node
from composer_plugin_server.operations import Operations
from composer_plugin_server.pools import Warm

TICK_S, SECOND_S = 0.25, 1.0
log = logging.getLogger(__name__)


@define(eq=False)
class Keeper:
    """Runs until it is cancelled."""

    node: Node
    operations: Operations
    _tasks: set[asyncio.Task[None]] = field(factory=set)
    _reconciling: asyncio.Task[None] | None = None
    _looked_s: float = field(factory=time.monotonic)
    _reconciled_s: float = field(factory=time.monotonic)

    async def run(self) -> None:
        """One round after another; what fails in one is tried again in the next."""
        try:
            await self._rounds()
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _rounds(self) -> None:
        while True:
            try:
                self._round(time.monotonic())
            except Exception:  # leases must end whatever cannot be read or counted
                log.exception("a round of the server's housekeeping failed")
            await asyncio.sleep(TICK_S)

    def _round(self, now: float) -> None:
        self.expire()
        self.node.pools.tend()
        self.operations.forget()
        if now - self._looked_s >= SECOND_S:
            self._looked_s = now
            self.look()
        if now - self._reconciled_s >= self.node.settings.server.reconcile_s:
            self._reconciled_s = now
            if self._reconciling is None or self._reconciling.done():  # a provider may take its time
                self._reconciling = self._start(self.reconcile())

    def look(self) -> None:
        """One look at the machine, and a point of the figures."""
        node = self.node
        node.gate.pressure = node.machine.look()
        node.figures.add(states(node), node.gate.pressure)
        node.gate.pump()

    def expire(self) -> None:
        """End leases whose client is silent, and sandboxes that were not renewed."""
        node, now = self.node, time.monotonic()
        for lease in node.leases.late():
            node.figures.counts["leases_expired"] += 1
            node.leases.remove(lease)
            self._start(node.end(lease))
        for lease in node.leases:
            late = [one for one in lease.sandboxes.values() if one.until_s is not None and now > one.until_s]
            for owned in late:
                node.figures.counts["sandboxes_expired"] += 1
                self._end(lease, owned)

    def _end(self, lease: Lease, owned: Owned) -> None:
        owned.until_s = None  # once is enough
        self._start(self.node.destroy(lease, owned.id))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # counted as stuck, and tried again by the reconcile

    async def reconcile(self) -> None:
        """What the provider has lost is taken off; what could not be destroyed is tried again."""
        for lease in self.node.leases:
            for owned in list(lease.sandboxes.values()):
                if await self._vanished(owned.backend.id) and lease.sandboxes.get(owned.id) is owned:
                    del lease.sandboxes[owned.id]
                    self._gone(owned)
        for warm in self.node.pools.members():
            if await self._vanished(warm.backend.id) and self.node.pools.drop(warm):
                self._gone(warm)
        for owned in list(self.node.making.ending.values()):
            with suppress(Exception):
                await self.node.making.finish(owned)

    def _gone(self, one: Owned | Warm) -> None:
        self.node.figures.counts["vanished"] += 1
        self.node.making.gone(one.id, one.ticket)

    async def _vanished(self, backend: str) -> bool:
        try:
            await self.node.provider.attach(backend)
        except SandboxGone:
            return True
        except Exception:  # it cannot be told now
            return False
        return False


def states(node: Node) -> Counter[str]:
    """Sandboxes of a node by what they do; those that wait to be are counted too."""
    found = Counter(owned.state for lease in node.leases for owned in lease.sandboxes.values())
    found["waiting"] = node.gate.waiting
    found["starting"] = node.gate.starting
    found["warm"] = node.pools.warm
    found["ending"] = len(node.making.ending)
    return found
