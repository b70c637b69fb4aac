"""One rank of the trainer: the run's own, in a process of its own, asked like any other of its methods.

What a rank does with its share of a batch is the trainer's business; the environment that torch.distributed reads is
set before anything imports torch. No Ray here.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from composer_core.protocols import Trainer
from composer_plugin_ray.blueprint import Blueprint


class TrainerRank:
    """One rank: the run's trainer in a process of its own."""

    def __init__(self, blueprint: Blueprint, rank: int, ranks: int) -> None:
        self._blueprint, self._rank, self._ranks = blueprint, rank, ranks

    async def address(self) -> tuple[str, int]:
        """Host and a free port of rank 0, where the others will find it."""
        host = socket.gethostbyname(socket.gethostname())
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, int(probe.getsockname()[1])

    async def start(self, address: tuple[str, int]) -> None:
        if self._ranks > 1:
            host, port = address
            os.environ |= {
                "MASTER_ADDR": host,
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(self._ranks),
                "RANK": str(self._rank),
                "LOCAL_RANK": str(self._rank),
            }
        await asyncio.to_thread(self._build)

    def _build(self) -> None:
        self._assembly = self._blueprint.open("trainer", self._rank)
        self._trainer: Trainer = self._assembly.get("trainers")

    async def ask(self, method: str, args: tuple[Any, ...]) -> Any:
        found = await getattr(self._trainer, method)(*args)
        return found if self._rank == 0 else None

    async def close(self) -> None:
        await self._assembly.close()
