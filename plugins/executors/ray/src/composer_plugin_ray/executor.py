"""The controller's side: where an episode runs, which replica it asks, and what becomes of it when a process vanishes.

The loop, the ledger and the commits stay in the controller and know nothing of this. `dispatch` decides who gets an
episode, `pool` keeps the processes there; what was under way in one that vanishes is void for "lost", and the ledger
asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from composer_core import BuildContext
from composer_core.episode import fault_of
from composer_core.errors import ComposerError, SandboxError, WorkLost
from composer_core.events import Event, FaultRecorded
from composer_core.executor import LoopLag
from composer_core.protocols import Trainer
from composer_core.types import EpisodeRequest, EpisodeResult, SlotKey, WeightsRef
from composer_plugin_ray.blueprint import Blueprint
from composer_plugin_ray.cluster import Cluster
from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.dispatch import Dispatch, Placement
from composer_plugin_ray.environments import EnvironmentServer
from composer_plugin_ray.figures import Figures, by_process
from composer_plugin_ray.line import Line, copy_of
from composer_plugin_ray.pool import Pool, cancel, together
from composer_plugin_ray.ranks import TrainerGroup
from composer_plugin_ray.remote import Remote, late, start
from composer_plugin_ray.replica import SamplerReplica
from composer_plugin_ray.restarts import Restarts
from composer_plugin_ray.shipping import Sender
from composer_plugin_ray.tape import erase, folder
from composer_plugin_ray.turns import Turns
from composer_plugin_ray.voids import void
from composer_plugin_ray.weights.receiver import WeightsDamaged
from composer_plugin_ray.worker import RolloutWorker


class RayExecutor:
    """`protocols.Executor` over actors; the owner of their pools."""

    def __init__(self, config: RayConfig, build: BuildContext) -> None:
        self._config, self._build = config, build
        self._cluster = Cluster(config)
        self._sender = Sender(config, build.run_dir.resolve())
        restarts = Restarts(config.restarts_per_hour)
        answer_s = config.answer_timeout_s
        self._replicas = Pool("replica", config.sampler_replicas, self, restarts, answer_s)
        self._workers = Pool("worker", config.workers, self, restarts, answer_s)
        self._lines: dict[str, Line] = {}
        self._dispatch, self._turns, self._in_flight = Dispatch(), Turns(), 0
        self._watches: list[asyncio.Future[None]] = []
        self._servers: dict[str, asyncio.Future[Remote]] = {}
        self._server_ids: dict[str, int] = {}
        self._weights: WeightsRef | None = None
        self._trainer: TrainerGroup | None = None
        self._broken: Exception | None = None
        self._serves: dict[str, int] = {}
        """Version of the weights that each replica has loaded."""
        self._tapes = folder() if config.keep_turns else ""
        self._lost: set[SlotKey] = set()
        self._awaited: set[str] = set()
        self._figures = Figures(self._heard)
        self._counts: Counter[str] = Counter()
        self._lag = LoopLag()

    async def start(self) -> None:
        self._lag.start()
        await self._erase_tapes()
        await self._cluster.open()
        self._blueprint = Blueprint.of(self._build)
        await together([self._replicas.open(), self._workers.open()])

    def trainer(self) -> Trainer:
        if self._trainer is None:
            self._trainer = TrainerGroup(self._config, self._blueprint)
        return self._trainer

    # --- processes ---

    async def ready(self, pool: Pool, name: str, place: int) -> Remote:
        if pool is self._workers:
            what = (RolloutWorker, self._blueprint, place, name, self._config.episodes_per_worker, self._tapes)
            return await self._started(start(name, {"num_cpus": self._config.worker_cpus}, *what), self._server)
        resources = {"num_cpus": self._config.replica_cpus, "num_gpus": self._config.replica_gpus}
        replica = (SamplerReplica, self._blueprint, place, self._sender.store)
        return await self._current(await self._started(start(name, resources, *replica)))

    async def _current(self, replica: Remote) -> Remote:
        """The same with the published weights, also those that were published while it loaded; or killed."""
        try:
            seen = None
            while seen is not self._weights:
                seen = self._weights
                await self._load(replica)
        except BaseException:
            replica.kill()
            self._serves.pop(replica.name, None)
            raise
        return replica

    async def _started(self, remote: Remote, *needs: Callable[[Remote], Awaitable[Any]]) -> Remote:
        """The same when it can serve, or killed; it is started with what its place offers."""
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                found = await remote.found()
                await found.call("start", *[await need(found) for need in needs])
                return found
        except TimeoutError:
            remote.kill()
            raise late(remote.name, self._config.start_timeout_s) from None
        except BaseException:
            remote.kill()
            raise

    async def _server(self, worker: Remote) -> Remote | None:
        """The environment server of a worker's node, started with the first of its workers."""
        if not self._config.environments:
            return None
        if worker.node not in self._servers:
            self._servers[worker.node] = asyncio.ensure_future(self._start_server(worker.node))
        return await asyncio.shield(self._servers[worker.node])

    async def _start_server(self, node: str) -> Remote:
        what = (EnvironmentServer, self._blueprint, self._config.restarts_per_hour, self._config.start_timeout_s)
        try:
            remote = await self._started(start(f"environment-{len(self._servers)}", {"num_cpus": 0}, *what, node=node))
            environment = await remote.call("environment")
        except BaseException:
            del self._servers[node]  # the next worker there has it started again
            raise
        self._server_ids[remote.name] = environment.pid
        self._watches.append(asyncio.ensure_future(self._watch_server(remote)))
        return remote

    async def _watch_server(self, remote: Remote) -> None:
        """Workers of its node have no sandboxes any more: they are started anew, with a new server."""
        await remote.gone()
        self._servers.pop(remote.node, None)
        self._server_ids.pop(remote.name, None)
        for worker in self._workers.members.values():
            if worker.node == remote.node:
                worker.kill()

    async def joined(self, pool: Pool, remote: Remote) -> None:
        """Workers know every replica before it serves."""
        if pool is self._workers:
            await pool.tell(remote, "use", dict(self._replicas.members))
            note = self._figures.worker(remote.name)
            self._lines[remote.name] = Line("controller", remote.exchange, note)
            self._dispatch.workers.add(remote.name)
        else:
            await self._workers.tell_all("use", dict(self._replicas.members))
            self._dispatch.replicas.add(remote.name)
        self._turns.all()

    def lost(self, error: WorkLost) -> None:
        self._counts["processes_lost"] += 1
        self._build.emit(FaultRecorded(fault=fault_of("host", error, "ray/ray")))

    async def vanished(self, pool: Pool, name: str, error: WorkLost) -> None:
        if pool is self._workers:
            self._dispatch.workers.remove(name)
            await self._lines.pop(name).close(error)
            await self._replicas.tell_all("forget", name)
        else:
            self._dispatch.replicas.remove(name)
            await self._workers.tell_all("use", dict(self._replicas.members))
            self._serves.pop(name, None)

    def failed(self, error: Exception) -> None:
        self._broken = self._broken or error  # the first says what began it
        self._turns.all()

    # --- episodes ---

    def places(self) -> int:
        """Those of workers that are on their way too: the loop asks only when an episode ends."""
        return self._config.workers * self._config.episodes_per_worker

    def _room(self) -> bool:
        living = len(self._dispatch.workers) * self._config.episodes_per_worker
        return self._in_flight < living and len(self._dispatch.replicas) > 0

    async def submit(self, request: EpisodeRequest) -> EpisodeResult:
        """Raises ComposerError when no more processes are started."""
        placement = await self._placement(request.group)
        self._awaited.add(request.key.episode_id)
        try:
            result = await self._run(request, placement)
            self._lost.discard(request.key)
            if result.verdict.lost:  # whoever vanished serves no more when the ledger asks again
                self._lost.add(request.key)
                await self._workers.check(placement.worker.name)
                await self._replicas.check(placement.replica.name)
            return result
        finally:
            self._awaited.discard(request.key.episode_id)
            self._dispatch.ended(placement)
            self._in_flight -= 1
            self._turns.next()

    async def _placement(self, group: str) -> Placement:
        while True:
            if self._broken:
                raise copy_of(self._broken)
            if self._room():
                self._in_flight += 1
                return self._dispatch.place(group)
            await self._turns.wait()

    def _heard(self, event: Event) -> None:
        """What a worker tells travels behind: of an episode that was given up, the end has been told already."""
        episode_id = getattr(event, "episode_id", None)
        if episode_id is None or episode_id in self._awaited:
            self._build.emit(event)

    async def _run(self, request: EpisodeRequest, placement: Placement) -> EpisodeResult:
        line, again = self._lines[placement.worker.name], request.key in self._lost
        try:
            async with asyncio.timeout(self._config.episode_timeout_s):
                found: EpisodeResult = await line.call("run", request, placement.replica.name, again)
                return found
        except TimeoutError:
            error = SandboxError(f"the episode has not ended within {self._config.episode_timeout_s:g} s")
            return void(request, "host", error)
        except WorkLost as error:
            return void(request, "lost", error)
        except ComposerError as error:
            return void(request, "host", error)

    # --- weights ---

    async def publish(self, weights: WeightsRef) -> None:
        self._weights = await self._sender.send(weights)
        await asyncio.gather(*(self._swap(remote) for remote in tuple(self._replicas.members.values())))

    async def _swap(self, remote: Remote) -> None:
        """A replica that vanishes is started anew with the weights of then."""
        with contextlib.suppress(WorkLost):
            await self._load(remote)

    async def _load(self, remote: Remote) -> None:
        """Raises WorkLost for a replica that is gone, also because it took too long and was killed."""
        try:
            async with asyncio.timeout(self._config.publish_timeout_s):
                if self._weights:
                    self._serves[remote.name] = await self._loaded(remote, self._weights)
        except TimeoutError:
            remote.kill()
            limit = f"within publish_timeout_s = {self._config.publish_timeout_s:g}"
            raise WorkLost(f"{remote.name} has not loaded what is published", who="ray/ray", expected=limit) from None

    async def _loaded(self, remote: Remote, weights: WeightsRef) -> int:
        """The version that it serves."""
        try:
            await remote.call("load", weights)
        except WeightsDamaged:
            self._weights = weights = await self._sender.mend(weights)
            await remote.call("load", weights)
        return weights.version

    # --- the end ---

    def stats(self) -> Mapping[str, float]:
        """Counters of all processes, and of each that lives what is its own: `worker/NAME/pid`, ..."""
        ranks = self._trainer.remotes if self._trainer else []
        living = [*self._workers.members.values(), *self._replicas.members.values(), *ranks]
        told = by_process(
            pid={**{one.name: one.pid for one in living}, **self._server_ids},
            episodes={**self._dispatch.workers.loads(), **self._dispatch.replicas.loads()},
            version=self._serves,
            restarts={**self._workers.restarted(), **self._replicas.restarted()},
        )
        counts = {name: float(count) for name, count in self._counts.items()}
        return {
            **self._figures.stats(),
            **self._sender.stats(),
            **counts,
            "loop_lag_p99_ms": self._lag.p99_ms(),
            "in_flight": float(self._in_flight),
            **told,
        }

    async def close(self) -> None:
        """Sandboxes first, so workers before all."""
        self._lag.stop()
        for line in tuple(self._lines.values()):
            await line.close()
        timeout_s = self._config.close_timeout_s
        await self._workers.close(timeout_s)
        await self._replicas.close(timeout_s)
        await cancel([*self._watches, *(server for server in self._servers.values() if not server.done())])
        for found in await asyncio.gather(*self._servers.values(), return_exceptions=True):
            if isinstance(found, Remote):
                await found.end(timeout_s)
        if self._trainer:
            await self._trainer.end(timeout_s)
        self._sender.close()
        await self._erase_tapes()
        await self._cluster.close()

    async def _erase_tapes(self) -> None:
        if self._tapes:
            await asyncio.to_thread(erase, self._build.get("stores"))


def build(config: RayConfig, context: BuildContext) -> RayExecutor:
    return RayExecutor(config, context)
