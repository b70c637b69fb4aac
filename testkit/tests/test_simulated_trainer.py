"""The simulated trainer passes the trainers' contract, and its bytes tell batches apart."""

from __future__ import annotations

import asyncio

from attrs import evolve

from composer_core.protocols import BuildContext
from composer_core.types import GroupRewards
from composer_testing.contracts.trainers import TrainerContract, sample_batch, sample_sequence
from composer_testing.fakes.clock import FakeClock
from composer_testing.fakes.trainer import SimulatedStage, SimulatedTrainer, SimulatedTrainerConfig, batch_bytes


class TestSimulatedTrainer(TrainerContract):
    def build(self, context):
        return SimulatedTrainer(SimulatedTrainerConfig(), context)

    def settings(self):
        return SimulatedStage()


def test_whatever_an_update_depends_on_changes_the_bytes():
    base = sample_batch(0, "policy/dr_grpo")
    others = [
        sample_batch(1, "policy/dr_grpo"),
        evolve(base, objective="policy/rloo"),
        evolve(base, sequences=base.sequences[::-1]),
        evolve(base, sequences=base.sequences[:-1]),
        evolve(base, groups=(GroupRewards("a", (0, 1), (1.0, 0.5)), base.groups[1])),
        evolve(base, sequences=(sample_sequence(0, 10), *base.sequences[1:])),
    ]
    assert len({batch_bytes(batch) for batch in (base, *others)}) == len(others) + 1
    assert batch_bytes(base) == batch_bytes(sample_batch(0, "policy/dr_grpo"))


def test_a_step_takes_simulated_seconds_on_the_injected_clock(tmp_path):
    clock = FakeClock()

    async def body():
        trainer = SimulatedTrainer(SimulatedTrainerConfig(step_s=90.0), BuildContext(tmp_path), sleep=clock.sleep)
        await trainer.begin("rl", SimulatedStage())
        step = asyncio.create_task(trainer.step(sample_batch(0)))
        await clock.run(89.0)
        assert not step.done()
        await clock.run(2.0)
        assert step.done() and trainer.steps == 1

    asyncio.run(body())
