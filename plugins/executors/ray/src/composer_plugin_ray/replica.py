"""A sampler replica: the run's policy sampler in a process of its own, with those other samplers that need torch.

Workers ask it over lines; sessions are remembered by the worker that opened them, so that a worker's end frees them.
No Ray here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from composer_core import Column
from composer_core.protocols import Sampler
from composer_core.types import Completion, GenerateRequest, GenerateSettings, WeightsRef
from composer_plugin_ray.blueprint import Blueprint
from composer_plugin_ray.line import Answer, Batch, Desk, Numbered
from composer_plugin_ray.shipping import Taker


class _Absent:
    """Stands for a sampler that lives in workers."""


class SamplerReplica:
    """Serves generations; `load` swaps weights between decode steps."""

    def __init__(self, blueprint: Blueprint, rank: int, store: str) -> None:
        self._blueprint, self._rank, self._store = blueprint, rank, store
        self._desk = Desk({"generate": self._generate, "release": self._release}, self._note)
        self._notes = 0
        self._sessions: dict[str, set[tuple[str, str]]] = defaultdict(set)

    async def start(self) -> None:
        """Build the samplers; weights come with `load`."""
        await asyncio.to_thread(self._build)

    def _build(self) -> None:
        config = self._blueprint.config
        light = {"policy", *config["samplers"]} - set(self._blueprint.heavy)
        stand_ins = {name: _Absent() for name in light}
        self._assembly = self._blueprint.open("sampler", self._rank, samplers=stand_ins)
        self._samplers: Mapping[str, Sampler] = self._assembly.get("samplers")
        self._taker = Taker(self._store, self._blueprint.run_dir, self._rank)

    async def load(self, weights: WeightsRef) -> None:
        """Every generation that starts from now on is of `weights`."""
        async with self._taker.file(weights) as path:
            await self._samplers["policy"].load(weights, path)

    async def exchange(self, batch: Batch) -> Answer:
        return await self._desk.exchange(batch)

    async def _generate(
        self, client: str, sampler: str, ids: Column, settings: GenerateSettings, request: GenerateRequest
    ) -> Completion:
        self._sessions[client].add((sampler, request.session))
        return await self._samplers[sampler].generate(list(ids.values()), settings, request)

    async def _release(self, client: str, sampler: str, session: str) -> None:
        self._sessions[client].discard((sampler, session))
        await self._samplers[sampler].release(session)

    def _note(self) -> Numbered:
        self._notes += 1
        return Numbered(self._notes, self._samplers["policy"].stats())

    async def forget(self, client: str) -> None:
        """A worker is gone: what it had asked for ends, and its sessions are freed."""
        await self._desk.forget(client)
        for sampler, session in self._sessions.pop(client, ()):
            await self._samplers[sampler].release(session)

    async def close(self) -> None:
        await self._desk.close()
        await self._assembly.close()
        self._taker.close()
