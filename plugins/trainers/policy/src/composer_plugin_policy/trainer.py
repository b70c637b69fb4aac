"""`policy/policy`: the async face of the engine, which runs on one thread of its own.

The event loop never computes: each call is queued on that thread, so calls are also in order. The policy is built on
the first of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from composer_core.columns import Column
from composer_core.errors import TrainerError
from composer_core.protocols import BuildContext
from composer_core.types import StepStats, TrainBatch
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings
from composer_plugin_policy.engine import Engine

T = TypeVar("T")


class PolicyTrainer:
    """Satisfies `protocols.Trainer`."""

    def __init__(self, config: PolicyTrainerConfig, build: BuildContext) -> None:
        self._config, self._build = config, build
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._engine: Engine | None = None
        self._closed = False

    async def begin(self, stage: str, settings: Any) -> None:
        """`settings` is a StageSettings, or a mapping of its fields."""
        structured = settings if isinstance(settings, StageSettings) else StageSettings(**settings)
        await self._run(lambda engine: engine.begin(stage, structured))

    async def step(self, batch: TrainBatch) -> StepStats:
        return await self._run(lambda engine: engine.step(batch))

    async def save(self, folder: Path) -> None:
        await self._run(lambda engine: engine.save(folder))

    async def load(self, folder: Path) -> None:
        await self._run(lambda engine: engine.load(folder))

    async def export(self, path: Path) -> None:
        await self._run(lambda engine: engine.export(path))

    async def logprobs(self, batch: TrainBatch) -> list[Column]:
        return await self._run(lambda engine: engine.logprobs(batch))

    async def close(self) -> None:
        """Wait for the call in progress, then free the policy; safe twice."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._stop)
        self._thread.shutdown(wait=True)

    async def _run(self, call: Callable[[Engine], T]) -> T:
        if self._closed:
            raise TrainerError("the trainer is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._named, call)

    def _named(self, call: Callable[[Engine], T]) -> T:
        engine = self._started()
        with engine.ranks.named():
            return call(engine)

    def _started(self) -> Engine:
        if self._engine is None:
            self._engine = Engine(self._config, self._build)
        return self._engine

    def _stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
