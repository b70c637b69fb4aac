"""A trainer without torch: its "weights" are a hash of everything it was trained on.

Two runs that feed the same batches in the same order end with the same bytes, and any difference (a batch lost,
trained twice, or out of order) changes them, so tests of resume and of the ledger compare files. Nothing is learned,
and log-probabilities are made up from the ids.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from attrs import field, frozen
from attrs.validators import ge

from composer_core.columns import Column, pack, unpack
from composer_core.errors import StoreError, TrainerError
from composer_core.noise import key_of, uniform
from composer_core.protocols import BuildContext
from composer_core.types import StepStats, TrainBatch, TrainSequence

WEIGHTS = "weights.safetensors"
COUNTERS = "trainer.json"


@frozen
class SimulatedTrainerConfig:
    """Settings of the simulated trainer."""

    step_s: float = field(default=0.0, validator=ge(0))
    """Simulated seconds that one step takes, slept on the injected clock."""


@frozen
class SimulatedStage:
    """Stage settings, accepted so that run files of the real trainer's shape work; any rate has the same effect."""

    learning_rate: float = 1e-3
    """Reported as a metric."""


class SimulatedTrainer:
    """Satisfies `protocols.Trainer`; `sleep` is asyncio's or a `FakeClock`'s."""

    def __init__(
        self,
        config: SimulatedTrainerConfig,
        build: BuildContext,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config, self._sleep = config, sleep
        self._digest = hashlib.sha256(f"seed {build.seed}".encode()).digest()
        self._stage = ""
        self._steps = 0
        self._rate = 0.0
        self._loaded = False
        self._closed = False

    @property
    def steps(self) -> int:
        """Steps in the lineage of the present weights, over all stages."""
        return self._steps

    async def begin(self, stage: str, settings: Any) -> None:
        self._open()
        if not (self._loaded and stage == self._stage):
            self._mix(f"begin {stage}".encode())
        self._stage, self._loaded = stage, False
        self._rate = float(getattr(settings, "learning_rate", 0.0))

    async def step(self, batch: TrainBatch) -> StepStats:
        self._open()
        if not self._stage:
            raise TrainerError("a step before any stage began", fix="call begin(stage, settings) first")
        await self._sleep(self._config.step_s)
        self._mix(batch_bytes(batch))
        self._steps += 1
        tokens = sum(sum(sequence.trained.values()) for sequence in batch.sequences)
        loss = 1.0 / self._steps
        return StepStats({"loss": loss, "tokens": float(tokens), "learning_rate": self._rate, "grad_norm": 1.0})

    async def save(self, folder: Path) -> None:
        self._open()
        folder.mkdir(parents=True, exist_ok=True)
        await self.export(folder / WEIGHTS)
        counters = {"stage": self._stage, "steps": self._steps}
        _write(folder / COUNTERS, json.dumps(counters).encode())

    async def load(self, folder: Path) -> None:
        self._open()
        try:
            columns, _ = unpack((folder / WEIGHTS).read_bytes())
            counters = json.loads((folder / COUNTERS).read_text())
            self._digest = columns["digest"].data
            self._stage, self._steps = counters["stage"], counters["steps"]
        except (OSError, ValueError, KeyError) as error:
            raise StoreError("not a folder that a simulated trainer saved", where=str(folder)) from error
        self._loaded = True

    async def export(self, path: Path) -> None:
        self._open()
        _write(path, pack({"digest": Column("U8", (len(self._digest),), self._digest)}, {}))

    async def logprobs(self, batch: TrainBatch) -> list[Column]:
        """Made up from position and ids: the same for the same sequence, and never above 0."""
        self._open()
        return [_logprobs(sequence) for sequence in batch.sequences]

    async def close(self) -> None:
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise TrainerError("the trainer is closed")

    def _mix(self, data: bytes) -> None:
        self._digest = hashlib.sha256(self._digest + data).digest()


def batch_bytes(batch: TrainBatch) -> bytes:
    """Everything of a batch that a real trainer's update would depend on, as bytes."""
    rewards = [(group.group, group.episodes, group.rewards) for group in batch.groups]
    parts = [repr((batch.stage, batch.objective, batch.episodes, rewards)).encode()]
    for sequence in batch.sequences:
        parts += [repr((sequence.episode, sequence.segment)).encode(), sequence.ids.data, sequence.trained.data]
        parts += [sequence.behavior.data if sequence.behavior else b""]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _logprobs(sequence: TrainSequence) -> Column:
    key = key_of(sequence.ids.data)
    trained = sequence.trained.values()
    return Column.of("F32", (-uniform(key, position) if trained[position] else 0.0 for position in range(len(trained))))


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, path)
