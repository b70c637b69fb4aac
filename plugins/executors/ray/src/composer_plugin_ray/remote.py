"""The one place that talks to Ray's actors: ours as an actor, a handle of it, and what a vanished one means.

Every class of this plugin is an ordinary one, and `Host` makes any of them an actor. Errors cross as values, since
Ray would wrap them in classes of its own; what Ray itself raises means that the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from typing import Any

import ray
from attrs import evolve, frozen
from ray.exceptions import RayError, RayTaskError
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from composer_core.errors import ComposerError, WorkLost
from composer_plugin_ray.line import Answer, Batch, portable

CALLS_AT_ONCE = 10_000
"""Of one actor; every client of it has two exchanges out."""


@frozen
class Raised:
    """An error on its way home."""

    error: Exception


class Host:
    """An actor around `make(*args)`."""

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        self._made = make(*args)

    async def call(self, method: str, *args: Any) -> Any:
        try:
            return await getattr(self._made, method)(*args)
        except Exception as error:
            return Raised(portable(error))

    async def exchange(self, batch: bytes) -> bytes:
        """`call("exchange", ...)` for the many: bytes are what Ray passes on at the least cost."""
        return pickle.dumps(await self._made.exchange(pickle.loads(batch)), pickle.HIGHEST_PROTOCOL)

    async def where(self) -> tuple[int, str, str, str]:
        return os.getpid(), socket.gethostname(), here(), get_node_ip_address()

    async def stay(self) -> None:
        """Never ends, so whoever waits for it learns at once that this process is gone."""
        await asyncio.Event().wait()


@frozen
class Remote:
    """A handle of a `Host`; travels between processes."""

    name: str
    """For messages: worker-0.1 is the first process at place 0."""
    actor: Any
    pid: int = 0
    """0 until it is found, as are the others."""
    host: str = ""
    node: str = ""
    """Ray's id of the machine."""
    address: str = ""
    """Of the machine, as its other nodes reach it; what its own name resolves to may be a loopback address."""

    async def found(self) -> Remote:
        """The same, and where it is."""
        pid, host, node, address = await self._asked(self.actor.where.remote())
        return evolve(self, pid=pid, host=host, node=node, address=address)

    async def call(self, method: str, *args: Any) -> Any:
        """Raises what the method raised, or WorkLost when its process is gone."""
        found = await self._asked(self.actor.call.remote(method, *args))
        if isinstance(found, Raised):
            raise found.error
        return found

    async def exchange(self, batch: Batch) -> Answer:
        """Of a line with the process's desk."""
        told = pickle.dumps(batch, pickle.HIGHEST_PROTOCOL)
        found: Answer = pickle.loads(await self._asked(self.actor.exchange.remote(told)))
        return found

    async def gone(self) -> WorkLost:
        """Returns when the process is gone."""
        try:
            await self._asked(self.actor.stay.remote())
        except WorkLost as error:
            return error
        return self._lost("it has ended")

    async def _asked(self, ref: Any) -> Any:
        try:
            return await ref
        except RayTaskError as error:
            raise ComposerError(f"{self.name} broke: {error.cause}", who="ray/ray") from error
        except RayError as error:
            raise self._lost(str(error).partition("\n")[0]) from None

    def _lost(self, found: str) -> WorkLost:
        where = f" ({self.pid} on {self.host})" if self.pid else ""
        return WorkLost(f"process {self.name}{where} is gone", who="ray/ray", found=found)

    async def end(self, timeout_s: float) -> None:
        """Ask the process to put away what it holds, and end it."""
        with contextlib.suppress(ComposerError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.call("close")
        self.kill()

    def kill(self) -> None:
        ray.kill(self.actor, no_restart=True)


def late(name: str, timeout_s: float) -> ComposerError:
    return ComposerError(
        f"{name} was not ready within {timeout_s:g} s",
        who="ray/ray",
        found="Ray has no room for it, or it is slow to start",
        fix="give the cluster more cores, or executor.start_timeout_s more time",
    )


def here() -> str:
    """The node of this process."""
    found: str = ray.get_runtime_context().get_node_id()
    return found


def put(value: Any) -> Any:
    """`value` in the object store, for calls to take instead of it; blocks for a copy of its bytes."""
    return ray.put(value)


def start(
    name: str, resources: Mapping[str, float], make: Callable[..., Any], *args: Any, node: str = "", soft: bool = False
) -> Remote:
    """`make(*args)` in a process of its own: on the node that is named, if it can (`soft`), or spread over all."""
    where: Any = NodeAffinitySchedulingStrategy(node_id=node, soft=soft) if node else "SPREAD"
    options = {
        **resources,
        "max_concurrency": CALLS_AT_ONCE,
        "max_restarts": 0,
        "scheduling_strategy": where,
    }
    return Remote(name, ray.remote(Host).options(**options).remote(make, *args))
