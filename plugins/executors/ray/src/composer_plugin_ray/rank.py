"""One rank of the trainer: the run's own, in a process of its own, asked like any other of its methods.

What a rank does with its share of a batch is the trainer's business; the environment that torch.distributed reads is
set before anything imports torch. No Ray here.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from contextlib import suppress
from typing import Any

from composer_core.protocols import Trainer
from composer_plugin_ray.blueprint import Blueprint

SIOCGIFADDR = 0x8915


class TrainerRank:
    """One rank: the run's trainer in a process of its own."""

    def __init__(self, blueprint: Blueprint, rank: int, ranks: int) -> None:
        self._blueprint, self._rank, self._ranks = blueprint, rank, ranks

    async def port(self, host: str) -> int:
        """A free port of rank 0, at the address where the others will find it."""
        with socket.socket() as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])

    async def start(self, first: tuple[str, int], host: str) -> None:
        """Meet at the address of the first rank; `host` is this rank's own, and gloo's connections are of it.

        By itself gloo takes what the host's name resolves to: on some that is a loopback address, also in a cluster.
        """
        if self._ranks > 1:
            if name := interface(host):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            host, port = first
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


def interface(address: str) -> str:
    """Name of the network interface whose IPv4 address this is; "" where none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("40s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""
