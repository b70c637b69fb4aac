"""The trainer keeps its kind's contract, for imitation and for reinforcement, and learns what a batch teaches."""

import asyncio

import pytest
import torch
from attrs import evolve

from composer_core import BuildContext, Column, NoConfig
from composer_core.protocols import Algorithm
from composer_plugin_my_name.plugin import MyNameStage
from composer_plugin_my_name.trainer import MyNameTrainer
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.trainers import TrainerContract, sample_batch
from composer_testing.fakes.policy import TinyPolicy

RL = "any/centered"


def centered(rewards, config):
    return [reward - sum(rewards) / len(rewards) for reward in rewards]


def policy_gradient(inputs, config):
    return -inputs.advantage_T * inputs.logp_T


def context(run_dir, objective=policy_gradient):
    algorithm = Algorithm(RL, centered, objective, None, frozenset())
    made = {"policy": TinyPolicy, "algorithms": lambda: algorithm}
    return BuildContext(run_dir, seed=5, deterministic=True, get=lambda kind: made[kind]())


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestImitation(TrainerContract):
    @pytest.fixture
    def context(self, tmp_path):
        return context(tmp_path)

    def build(self, context):
        return MyNameTrainer(NoConfig(), context)

    def settings(self):
        return MyNameStage(learning_rate=0.5)


class TestReinforcement(TestImitation):
    objective = RL


def trained(run_dir, objective, steps, loss=policy_gradient):
    """Sums of the log-probabilities of each row after some steps, and the last step's report."""

    async def main():
        trainer = MyNameTrainer(NoConfig(), context(run_dir, loss))
        await trainer.begin("stage", MyNameStage(learning_rate=0.5))
        stats = [await trainer.step(sample_batch(0, objective)) for _ in range(steps)]
        columns = await trainer.logprobs(sample_batch(0, objective))
        await trainer.close()
        return [sum(column.values()) for column in columns], stats[-1] if stats else None

    return asyncio.run(main())


def test_imitated_rows_become_likely(tmp_path):
    after, stats = trained(tmp_path, "nll", 100)
    assert min(after) > -1 and stats.metrics["loss"] < 0.1


def test_rewarded_episodes_become_likelier_and_their_rivals_less(tmp_path):
    before, _ = trained(tmp_path, RL, 0)
    after, _ = trained(tmp_path, RL, 20)
    assert [now > then for now, then in zip(after, before, strict=True)] == [True, False, False, True]


def test_a_step_that_is_not_finite_is_skipped_and_leaves_the_weights_alone(tmp_path):
    after, stats = trained(tmp_path, RL, 2, lambda inputs, config: inputs.logp_T * torch.nan)
    assert stats.skipped and after == trained(tmp_path, RL, 0)[0]


def test_recorded_experts_are_replayed(tmp_path):
    """A sampler's choice of experts is part of what it did; other choices give other log-probabilities."""
    batch = sample_batch(0)
    row = batch.sequences[0]
    columns = [Column("U8", (len(row.ids), 1, 2), bytes(pair) * len(row.ids)) for pair in ((0, 1), (2, 3))]

    async def main():
        trainer = MyNameTrainer(NoConfig(), BuildContext(tmp_path, get=lambda kind: TinyPolicy(experts=4)))
        routed = [evolve(batch, sequences=(evolve(row, routes=routes),)) for routes in columns]
        found = [(await trainer.logprobs(one))[0].values().tolist() for one in routed]
        await trainer.close()
        return found

    first, second = asyncio.run(main())
    assert first != second
