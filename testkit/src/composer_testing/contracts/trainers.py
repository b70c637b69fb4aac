"""What every trainer must do (`protocols.Trainer`). Subclass `TrainerContract` and override `build`.

The suite itself needs no torch. A trainer that asks its context for a policy or an algorithm gets them from the
subclass, which overrides `context`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from composer_core.columns import Column
from composer_core.errors import StoreError, TrainerError
from composer_core.protocols import BuildContext, Trainer
from composer_core.types import GroupRewards, TrainBatch, TrainSequence

LENGTHS = (9, 5, 12, 7)


def sample_sequence(episode: int, length: int, shift: int = 0) -> TrainSequence:
    """A row below a vocabulary of 32 whose second half was sampled."""
    ids = [(7 * position + 3 * episode + shift) % 31 for position in range(length)]
    trained = [int(position >= length // 2) for position in range(length)]
    return TrainSequence(
        ids=Column.of("I32", ids),
        trained=Column.of("U8", trained),
        episode=episode,
        behavior=Column.of("F32", [-3.0 * flag for flag in trained]),
        comparable=Column.of("U8", [0] * length),
    )


def sample_batch(step: int, objective: str = "nll") -> TrainBatch:
    """Four episodes in two groups; different steps hold different ids."""
    sequences = tuple(sample_sequence(episode, length, step) for episode, length in enumerate(LENGTHS))
    groups = (GroupRewards("a", (0, 1), (1.0, 0.0)), GroupRewards("b", (2, 3), (0.0, 1.0)))
    return TrainBatch(
        stage="stage",
        objective=objective,
        sequences=sequences,
        episodes=len(sequences),
        groups=() if objective == "nll" else groups,
    )


class TrainerContract:
    """Name your subclass `Test...`; trainers are built on a deterministic context."""

    objective = "nll"
    """What the batches ask for; an algorithm id for a suite of rl."""

    def build(self, context: BuildContext) -> Trainer:
        raise NotImplementedError("return a trainer built from its config and this context")

    def settings(self) -> Any:
        """Stage settings under which a step moves the weights."""
        raise NotImplementedError("return an instance of the record's stage_config")

    @pytest.fixture
    def context(self, tmp_path: Path) -> BuildContext:
        return BuildContext(tmp_path / "run", seed=5, deterministic=True)

    def test_metrics_are_finite_floats(self, context: BuildContext) -> None:
        async def body(trainer: Trainer) -> None:
            await trainer.begin("stage", self.settings())
            stats = await trainer.step(self._batch(0))
            assert stats.metrics and not stats.skipped
            assert all(isinstance(value, float) and math.isfinite(value) for value in stats.metrics.values())
            assert "loss" in stats.metrics

        self._with(context, body)

    def test_a_step_changes_the_exported_weights(self, context: BuildContext, tmp_path: Path) -> None:
        async def body(trainer: Trainer) -> None:
            await trainer.begin("stage", self.settings())
            await trainer.export(tmp_path / "before")
            await trainer.step(self._batch(0))
            await trainer.export(tmp_path / "after")

        self._with(context, body)
        assert (tmp_path / "before").read_bytes() != (tmp_path / "after").read_bytes()

    def test_the_same_batches_give_the_same_bytes(self, context: BuildContext, tmp_path: Path) -> None:
        first = self._trained(context, tmp_path / "first", steps=(0, 1))
        assert first == self._trained(context, tmp_path / "second", steps=(0, 1))
        assert first != self._trained(context, tmp_path / "third", steps=(1, 0))

    def test_stopping_and_loading_gives_the_bytes_of_not_having_stopped(
        self, context: BuildContext, tmp_path: Path
    ) -> None:
        async def stop(trainer: Trainer) -> None:
            await trainer.begin("stage", self.settings())
            await trainer.step(self._batch(0))
            await trainer.save(tmp_path / "saved")

        async def carry_on(trainer: Trainer) -> None:
            await trainer.load(tmp_path / "saved")
            await trainer.begin("stage", self.settings())
            await trainer.step(self._batch(1))
            await trainer.step(self._batch(2))
            await trainer.export(tmp_path / "resumed")

        self._with(context, stop)
        self._with(context, carry_on)
        assert (tmp_path / "resumed").read_bytes() == self._trained(context, tmp_path / "whole", steps=(0, 1, 2))

    def test_it_computes_with_the_weights_that_it_saves(self, context: BuildContext, tmp_path: Path) -> None:
        """Whatever it keeps beside them (quantized copies, say) is of the last step too."""
        found: list[list[Column]] = []

        async def trained(trainer: Trainer) -> None:
            await trainer.begin("stage", self.settings())
            for step in range(3):
                await trainer.step(self._batch(step))
            found.append(await trainer.logprobs(self._batch(0)))
            await trainer.save(tmp_path / "saved")

        async def loaded(trainer: Trainer) -> None:
            await trainer.load(tmp_path / "saved")
            await trainer.begin("stage", self.settings())
            found.append(await trainer.logprobs(self._batch(0)))

        self._with(context, trained)
        self._with(context, loaded)
        assert found[0] == found[1]

    def test_loading_a_folder_that_was_never_saved_is_a_store_error(
        self, context: BuildContext, tmp_path: Path
    ) -> None:
        async def body(trainer: Trainer) -> None:
            with pytest.raises(StoreError):
                await trainer.load(tmp_path / "nothing")

        self._with(context, body)

    def test_a_step_before_any_stage_is_refused(self, context: BuildContext) -> None:
        async def body(trainer: Trainer) -> None:
            with pytest.raises(TrainerError):
                await trainer.step(self._batch(0))

        self._with(context, body)

    def test_logprobs_are_one_row_for_each_sequence(self, context: BuildContext) -> None:
        async def body(trainer: Trainer) -> None:
            await trainer.begin("stage", self.settings())
            batch = self._batch(0)
            for column, sequence in zip(await trainer.logprobs(batch), batch.sequences, strict=True):
                assert (column.dtype, len(column)) == ("F32", len(sequence.ids))
                flags = zip(column.values(), sequence.trained.values(), strict=True)
                assert all(value <= 0 and (flag or value == 0) for value, flag in flags)

        self._with(context, body)

    def test_close_is_safe_twice_and_before_anything_began(self, context: BuildContext) -> None:
        async def body(trainer: Trainer) -> None:
            await trainer.close()
            await trainer.close()

        self._with(context, body)

    def _batch(self, step: int) -> TrainBatch:
        return evolve(sample_batch(step, self.objective), progress=step / 10)

    def _trained(self, context: BuildContext, path: Path, steps: tuple[int, ...]) -> bytes:
        async def body(trainer: Trainer) -> None:
            await trainer.begin("stage", self.settings())
            for step in steps:
                await trainer.step(self._batch(step))
            await trainer.export(path)

        self._with(context, body)
        return path.read_bytes()

    def _with(self, context: BuildContext, body: Callable[[Trainer], Awaitable[None]]) -> None:
        async def run() -> None:
            trainer = self.build(context)
            try:
                await body(trainer)
            finally:
                await trainer.close()

        asyncio.run(run())
