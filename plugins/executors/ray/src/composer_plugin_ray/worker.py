"""A rollout worker: the in-process executor in a process of its own, its policy somewhere else.

It builds the run as recorded, but for the samplers: those that need weights or torch are stand-ins that ask a replica.
So it never imports torch, and hundreds of its episodes wait at once for next to nothing. What happens in it (events,
counters) travels with its answers. No Ray here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from attrs import frozen

from composer_core.config import InProcessConfig
from composer_core.events import Event
from composer_core.executor import InProcessExecutor
from composer_core.types import EpisodeRequest, EpisodeResult
from composer_plugin_ray.blueprint import Blueprint
from composer_plugin_ray.line import Answer, Batch, Desk, Numbered
from composer_plugin_ray.remote import Remote
from composer_plugin_ray.samplers import REPLICA, RemoteSampler, Replicas

FRESH_S = 1.0
"""Age at which a busy worker's counters are made anew; medians over all it has done cost more than a message."""


@frozen
class WorkerNote:
    """What a worker tells with each answer."""

    events: tuple[Event, ...]
    """Of its episodes, since the last note."""
    stats: Numbered
    """Its counters."""
    replicas: Mapping[str, Numbered]
    """Counters of each replica, as of its last answer."""


class RolloutWorker:
    """Runs episodes; `run` may be asked for as often as there is room for."""

    def __init__(self, blueprint: Blueprint, rank: int, name: str, concurrent: int) -> None:
        self._blueprint, self._rank, self._concurrent = blueprint, rank, concurrent
        self._replicas = Replicas(name)
        self._desk = Desk({"run": self._run}, self._note)
        self._events: list[Event] = []
        self._stats: Mapping[str, float] = {}
        self._fresh = 0.0
        self._running = self._notes = 0

    async def start(self) -> None:
        """Build everything that an episode needs."""
        await asyncio.to_thread(self._build)
        self._executor = InProcessExecutor(InProcessConfig(self._concurrent), self._assembly.build_context())
        await self._executor.start()

    def _build(self) -> None:
        names = self._blueprint.heavy
        samplers = {name: RemoteSampler(name, self._replicas) for name in names}
        self._assembly = self._blueprint.open("worker", self._rank, self._emit, samplers)
        self._assembly.get("parts")

    async def use(self, replicas: Mapping[str, Remote]) -> None:
        """The replicas there are from now on."""
        await self._replicas.use(replicas)

    async def exchange(self, batch: Batch) -> Answer:
        return await self._desk.exchange(batch)

    async def _run(self, client: str, request: EpisodeRequest, replica: str) -> EpisodeResult:
        REPLICA.set(replica)
        self._running += 1
        try:
            return await self._executor.submit(request)
        finally:
            self._running -= 1

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def _note(self) -> WorkerNote:
        now = time.perf_counter()
        if not self._running or now - self._fresh >= FRESH_S:
            found = self._executor.stats()
            self._stats = {name: value for name, value in found.items() if not name.startswith("sampler/")}
            self._fresh = now
        self._notes += 1
        events, self._events = self._events, []
        return WorkerNote(tuple(events), Numbered(self._notes, self._stats), self._replicas.notes())

    async def close(self) -> None:
        """End episodes and sandboxes."""
        await self._desk.close()
        await self._executor.close()
        await self._assembly.close()
        await self._replicas.close()
