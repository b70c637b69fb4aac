"""`torch-sampler/continuous`: the engine behind the Sampler protocol, on a thread of its own.

The event loop never computes and the engine never waits: calls become commands in a queue that the thread drains
between steps, and answers return through `call_soon_threadsafe`. New weights are read and copied into the idle one of
two policy models beside the running one; only the swap itself happens between two steps (RL.md section 7).
"""

from __future__ import annotations

import asyncio
import hashlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import torch
from safetensors.torch import load_file

from composer_core import BuildContext
from composer_core.errors import SamplerError, StoreError
from composer_core.tensors import PolicyModel, one_thread
from composer_core.types import Completion, GenerateRequest, GenerateSettings, WeightsRef
from composer_plugin_torch_sampler.config import ContinuousConfig
from composer_plugin_torch_sampler.engine import Engine
from composer_plugin_torch_sampler.jobs import Job

Command = Callable[[], None]


def build(config: ContinuousConfig, build: BuildContext) -> ContinuousSampler:
    """Factory: two fresh policy models, which start from the same weights."""
    routes = bool(build.settings.get("router_replay", False))
    return ContinuousSampler(config, build.get("policy"), build.get("policy"), routes=routes)


class ContinuousSampler:
    """Implements `protocols.Sampler`; safe to call from any number of tasks of one event loop."""

    def __init__(
        self, config: ContinuousConfig, policy: PolicyModel, spare: PolicyModel, *, routes: bool = False
    ) -> None:
        policy.eval()
        spare.eval()
        self._spare = spare
        self._threads = config.threads
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._loading = asyncio.Lock()
        self._closed = False
        self._running = True
        made: Future[Engine] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(made, policy, config, routes), name="torch-sampler", daemon=True
        )
        self._thread.start()
        self._engine = made.result()

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        """Continue `ids`.

        Raises:
            SamplerError: the session is generating already, a log-probability is not a number, or the sampler closed.
        """
        self._check_open()
        future, done = _answer()
        job = Job(list(ids), settings, request, done)
        self._commands.put(lambda: self._submit(job))
        try:
            return await future
        except asyncio.CancelledError:
            self._commands.put(lambda: self._engine.cancel(job))
            raise

    async def load(self, weights: WeightsRef, path: Path) -> None:
        """Read `path` into the idle model, then swap between two steps.

        Raises:
            StoreError: the file's bytes are not those of `weights`.
        """
        self._check_open()
        loading = asyncio.ensure_future(self._load(weights, path))
        loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be left to ask
        await asyncio.shield(loading)  # a caller that gives up leaves no model half written or half swapped

    async def _load(self, weights: WeightsRef, path: Path) -> None:
        async with self._loading:
            await asyncio.to_thread(_copy, self._spare, weights, path)
            self._check_open()
            future, done = _answer()
            self._commands.put(lambda: self._swap(weights.version, done))
            await future

    async def release(self, session: str) -> None:
        if not self._closed:
            self._commands.put(lambda: self._engine.release(session))

    def stats(self) -> Mapping[str, float]:
        return self._engine.stats()

    async def close(self) -> None:
        """Ends what is in flight with SamplerError and joins the thread; safe twice."""
        if not self._closed:
            self._closed = True
            self._commands.put(self._stop)
        await asyncio.to_thread(self._thread.join)

    def _check_open(self) -> None:
        if self._closed:
            raise SamplerError("the sampler is closed")

    def _submit(self, job: Job) -> None:
        try:
            self._engine.submit(job)
        except Exception as error:
            job.done(SamplerError(f"the request cannot be taken: {type(error).__name__}: {error}"))

    def _swap(self, version: int, done: Callable[[object], None]) -> None:
        idle, self._spare = self._spare, self._engine.policy
        try:
            self._engine.swap(idle, version)
        except Exception as error:
            done(error)
            raise
        done(None)

    def _stop(self) -> None:
        self._running = False
        self._engine.fail(SamplerError("the sampler was closed"))

    def _run(self, made: Future[Engine], policy: PolicyModel, config: ContinuousConfig, routes: bool) -> None:
        """The thread: make the engine, drain commands, step while there is work, sleep in the queue otherwise.

        The engine's tensors are made here too: a parallel loop on another thread would leave an OpenMP team behind.
        """
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        try:
            engine = Engine(policy, config, routes=routes)
        except Exception as error:
            made.set_exception(error)
            return
        made.set_result(engine)
        while self._running:
            if not engine.busy:
                _guarded(engine, self._commands.get())
            while not self._commands.empty():
                _guarded(engine, self._commands.get())
            if engine.busy:
                _guarded(engine, engine.step)


def _guarded(engine: Engine, action: Command) -> None:
    """Whatever raises ends the generations under way (they are void, and issued again), never the thread: all later
    callers would wait for ever.
    """
    try:
        action()
    except Exception as error:
        failure = SamplerError(f"the engine failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        engine.fail(failure)


def _answer() -> tuple[asyncio.Future[Completion], Callable[..., None]]:
    """A future of this loop and a function of any thread that settles it; a cancelled future stays cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Completion] = loop.create_future()

    def settle(result: Completion | Exception) -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def done(result: Completion | Exception) -> None:
        loop.call_soon_threadsafe(settle, result)

    return future, done


def _copy(policy: PolicyModel, weights: WeightsRef, path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if weights.checksum and found != weights.checksum:
        raise StoreError(f"weights of version {weights.version} are damaged", expected=weights.checksum, found=found)
    with one_thread():
        policy.load_state_dict(load_file(path))  # mapped: each tensor is copied once, into the model
