"""A rollout worker: the in-process executor in a process of its own, its policy somewhere else.

It builds the run as recorded, but for the samplers: those that need weights or torch are stand-ins that ask a replica.
So it never imports torch, and hundreds of its episodes wait at once for next to nothing. What happens in it (events,
counters) travels with its answers. No Ray here.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from composer_core.config import InProcessConfig
from composer_core.events import Event
from composer_core.executor import InProcessExecutor
from composer_core.types import EpisodeRequest, EpisodeResult, Outcome, Verdict
from composer_plugin_ray.blueprint import Blueprint
from composer_plugin_ray.environments import TOKEN, Environment
from composer_plugin_ray.line import Answer, Batch, Desk, Numbered
from composer_plugin_ray.samplers import REPLICA, RemoteSampler, Replicas
from composer_plugin_ray.tape import TAPE, Tape

if TYPE_CHECKING:  # this module knows no Ray
    from composer_plugin_ray.remote import Remote

FRESH_S = 1.0
"""Age at which a busy worker's counters are made anew (medians over all it has done cost more than a message), and at
which they are told although no episode has ended."""


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

    def __init__(self, blueprint: Blueprint, rank: int, name: str, concurrent: int, tapes: str = "") -> None:
        """`tapes` is where episodes write down what they have sampled; "" for nowhere."""
        self._blueprint, self._rank, self._concurrent, self._tapes = blueprint, rank, concurrent, tapes
        self._replicas = Replicas(name)
        self._desk = Desk({"run": self._run}, self._note)
        self._events: list[Event] = []
        self._stats: Mapping[str, float] = {}
        self._fresh = self._told = 0.0
        self._running = self._notes = self._life = 0

    async def start(self, server: Remote | None) -> None:
        """Build everything that an episode needs; sandboxes are the server's where there is one."""
        self._server = server
        if server:
            environment: Environment = await server.call("environment")
            os.environ[TOKEN] = environment.token
            self._life = await server.call("life")
            await asyncio.to_thread(self._build, sandbox=environment.sandbox())
        else:
            await asyncio.to_thread(self._build)
        self._executor = InProcessExecutor(InProcessConfig(self._concurrent), self._assembly.build_context())
        await self._executor.start()

    def _build(self, **tables: Any) -> None:
        names = self._blueprint.heavy
        samplers = {name: RemoteSampler(name, self._replicas) for name in names}
        self._assembly = self._blueprint.open("worker", self._rank, self._emit, samplers, **tables)
        self._assembly.get("parts")

    async def use(self, replicas: Mapping[str, Remote]) -> None:
        """The replicas there are from now on."""
        await self._replicas.use(replicas)

    async def exchange(self, batch: Batch) -> Answer:
        return await self._desk.exchange(batch)

    async def _run(self, client: str, request: EpisodeRequest, replica: str, again: bool) -> EpisodeResult:
        REPLICA.set(replica)
        tape = None
        if self._tapes:
            key = f"{self._tapes}/{request.key.episode_id}"
            tape = Tape(self._assembly.get("stores"), key, plays=again)
        TAPE.set(tape)
        self._running += 1
        try:
            life = self._life
            result = await self._executor.submit(request)
            if result.verdict.cause in ("sandbox", "grader"):
                result = await self._told_as_lost(result, life)
            return await tape.ended(result) if tape else result
        finally:
            self._running -= 1

    async def _told_as_lost(self, result: EpisodeResult, life: int) -> EpisodeResult:
        """A sandbox, or a grader's, that ended with its server is no fault of theirs."""
        if self._server:
            self._life = await self._server.call("life")
        return result if self._life == life else evolve(result, verdict=Verdict(Outcome.VOID, "lost"))

    def _emit(self, event: Event) -> None:
        """Kept for the next answer; while none goes because no episode ends, they are told about once a second."""
        self._events.append(event)
        if time.perf_counter() - self._told >= FRESH_S:
            self._desk.tell()

    def _note(self) -> WorkerNote:
        now = time.perf_counter()
        if not self._running or now - self._fresh >= FRESH_S:
            found = self._executor.stats()
            told = {name: value for name, value in found.items() if not name.startswith("sampler/")}
            self._stats = {"worker_loop_lag_p99_ms": told.pop("loop_lag_p99_ms"), **told}
            self._fresh = now
        self._notes, self._told = self._notes + 1, now
        events, self._events = self._events, []
        return WorkerNote(tuple(events), Numbered(self._notes, self._stats), self._replicas.notes())

    async def close(self) -> None:
        """End episodes and sandboxes."""
        await self._desk.close()
        await self._executor.close()
        await self._assembly.close()
        await self._replicas.close()
