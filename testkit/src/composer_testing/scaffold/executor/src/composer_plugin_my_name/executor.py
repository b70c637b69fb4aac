"""Episodes as tasks of this process's event loop, behind a gate."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping

from composer_core import BuildContext
from composer_core.episode import fault_of, run_episode
from composer_core.errors import ComposerError, boundary
from composer_core.executor import result_of
from composer_core.parts import EpisodeParts
from composer_core.protocols import Store, Trainer
from composer_core.traces import encode
from composer_core.types import EpisodeRequest, EpisodeResult, Outcome, TraceRef, Verdict, WeightsRef
from composer_plugin_my_name.plugin import MyNameConfig


class MyNameExecutor:
    """`protocols.Executor`; every request is run once, and asking again is the ledger's business."""

    def __init__(self, config: MyNameConfig, build: BuildContext) -> None:
        self._parts: EpisodeParts = build.get("parts")
        self._store: Store = build.get("stores")
        self._build = build
        self._places = config.max_concurrent
        self._gate = asyncio.Semaphore(config.max_concurrent)
        self._ended: Counter[str] = Counter()

    async def start(self) -> None:
        """Nothing to place: samplers and sandboxes live in this process and were built with it."""

    def trainer(self) -> Trainer:
        """The run's own, in this process."""
        trainer: Trainer = self._build.get("trainers")
        return trainer

    def places(self) -> int:
        """As many as may be in flight."""
        return self._places

    async def submit(self, request: EpisodeRequest) -> EpisodeResult:
        """Run one episode when its turn comes; cancelling it ends the episode and frees its place."""
        async with self._gate:
            result = await self._run(request)
        self._ended[result.verdict.outcome.value] += 1
        return result

    async def _run(self, request: EpisodeRequest) -> EpisodeResult:
        try:
            with boundary("executors", "my-name/my-name"):
                trace = await run_episode(request, self._parts)
                data = encode(trace)
                uri = await asyncio.to_thread(self._store.put, f"traces/{request.key.episode_id}.trace", data)
                return result_of(trace, TraceRef(uri, hashlib.sha256(data).hexdigest()))
        except ComposerError as error:  # a bad episode never ends a run; whoever broke is named in the fault
            void = Verdict(Outcome.VOID, "host")
            return EpisodeResult(request.key, request.group, None, void, faults=(fault_of("host", error),))

    async def publish(self, weights: WeightsRef) -> None:
        """The policy's sampler has `weights` when this returns; episodes in flight go on with them."""
        await self._parts.samplers["policy"].load(weights, self._build.run_dir / weights.uri)

    def stats(self) -> Mapping[str, float]:
        """Ended episodes by outcome, what the sampler counts under `sampler/`, and what the sandboxes do."""
        ended = {f"episodes_{outcome}": float(count) for outcome, count in self._ended.items()}
        sampled = {f"sampler/{name}": value for name, value in self._parts.samplers["policy"].stats().items()}
        return {**ended, **sampled, **self._parts.sandboxes.stats()}

    async def close(self) -> None:
        """Nothing to end: whoever built the samplers and sandboxes closes them."""
