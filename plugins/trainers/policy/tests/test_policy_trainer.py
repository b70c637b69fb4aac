"""The trainer as the loop sees it: the public contract, for nll and rl, and what checkpoints hold."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file

from composer_core.errors import ConfigError, StoreError, TrainerError
from composer_core.protocols import BuildContext
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings
from composer_plugin_policy.trainer import PolicyTrainer
from composer_testing.contracts.trainers import TrainerContract
from composer_testing.fakes.policy import TinyPolicy


class TestTrainsText(TrainerContract):
    @pytest.fixture
    def context(self, context: Callable[..., BuildContext]) -> BuildContext:
        return context(deterministic=True, dropout=0.2)  # dropout draws noise, so bytes need its state to be right

    def build(self, context: BuildContext) -> PolicyTrainer:
        return PolicyTrainer(PolicyTrainerConfig(), context)

    def settings(self) -> StageSettings:
        return StageSettings(warmup_steps=3, schedule="cosine", micro_batch_tokens=20)


class TestTrainsPolicies(TestTrainsText):
    objective = "policy/dr_grpo"

    @pytest.fixture
    def context(self, context: Callable[..., BuildContext]) -> BuildContext:
        return context(deterministic=True, experts=8)

    def settings(self) -> StageSettings:
        return StageSettings(beta=0.05, micro_batch_tokens=20, loss_scale_tokens=10)


RL = StageSettings(loss_scale_tokens=10, beta=0.1)
LENGTHS, REWARDS = (9, 14), (1.0, 0.0)


def test_the_event_loop_stays_free_while_a_step_computes(context, batch):
    """The policy waits for the loop during its forward pass, so a step on the loop's thread could never end."""
    entered, free = threading.Event(), threading.Event()

    class Waiting(TinyPolicy):
        def trunk(self, *args: Any, **fields: Any) -> Any:
            entered.set()
            assert free.wait(30)
            return super().trunk(*args, **fields)

    async def body() -> None:
        made = evolve(context(), get=lambda kind: Waiting())
        trainer = PolicyTrainer(PolicyTrainerConfig(), made)
        await trainer.begin("sft", StageSettings())
        step = asyncio.create_task(trainer.step(batch(LENGTHS)))
        await asyncio.to_thread(entered.wait, 30)
        free.set()
        assert (await step).metrics["trained_tokens"] > 0
        await trainer.close()

    asyncio.run(body())


def test_a_closed_trainer_refuses_work(context, batch):
    async def body() -> None:
        trainer = PolicyTrainer(PolicyTrainerConfig(), context())
        await trainer.close()
        with pytest.raises(TrainerError, match="closed"):
            await trainer.step(batch(LENGTHS))

    asyncio.run(body())


def test_a_new_stage_has_a_fresh_optimizer_and_a_loaded_one_goes_on_with_its_own(engine, batch, tmp_path):
    made = engine()
    made.begin("one", RL)
    made.step(batch(LENGTHS, REWARDS))
    made.save(tmp_path / "saved")
    made.begin("two", RL)
    assert not made._optimizer.state and made._counters.steps == 0
    made.load(tmp_path / "saved")
    made.begin("one", RL)
    assert made._optimizer.state and made._counters.steps == 1
    made.begin("one", RL)
    assert not made._optimizer.state


def test_the_reference_of_kl_survives_a_restart(engine, batch, tmp_path):
    made, resumed = engine(), engine()
    made.begin("rl", evolve(RL, learning_rate=1e-2))
    made.step(batch(LENGTHS, REWARDS))
    made.save(tmp_path / "saved")
    resumed.load(tmp_path / "saved")
    resumed.begin("rl", evolve(RL, learning_rate=1e-2))
    left, right = (each.step(batch(LENGTHS, REWARDS)).metrics["kl_per_token"] for each in (made, resumed))
    assert left == right != 0.0


def test_exported_weights_hold_every_name_of_the_state_dict_and_load_into_a_fresh_policy(engine, batch, tmp_path):
    made = engine()
    made.begin("rl", RL)
    made.step(batch(LENGTHS, REWARDS))
    made.export(tmp_path / "weights.safetensors")
    written = load_file(tmp_path / "weights.safetensors")
    fresh = TinyPolicy(seed=9)
    fresh.load_state_dict(written)  # strict: the tied head is there under its own name
    assert all(tensor.equal(fresh.state_dict()[name]) for name, tensor in made._model.state_dict().items())


def test_checkpoints_hold_no_pickle(engine, batch, tmp_path):
    made = engine()
    made.begin("rl", RL)
    made.step(batch(LENGTHS, REWARDS))
    made.save(tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert names == {"weights.safetensors", "optimizer.safetensors", "reference.safetensors", "trainer.json"}


def test_weights_of_another_policy_and_torn_files_are_store_errors(engine, batch, tmp_path):
    made, other = engine(), engine(vocab=40)
    made.begin("rl", RL)
    made.save(tmp_path / "saved")
    with pytest.raises(StoreError, match="another policy"):
        other.load(tmp_path / "saved")
    weights = tmp_path / "saved" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    with pytest.raises(StoreError, match=r"weights\.safetensors"):
        made.load(tmp_path / "saved")


def test_a_deterministic_run_refuses_to_carry_on_with_other_threads(engine, tmp_path):
    made, plain = engine(deterministic=True), engine()
    made.begin("rl", RL)
    made.save(tmp_path / "saved")
    counters = tmp_path / "saved" / "trainer.json"
    counters.write_text(json.dumps(json.loads(counters.read_text()) | {"threads": 77}))
    plain.load(tmp_path / "saved")
    with pytest.raises(ConfigError, match="identical bytes"):
        made.load(tmp_path / "saved")


def test_the_process_wide_generator_and_switches_are_left_as_they_were(engine, batch):
    before, mode = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    made = engine(deterministic=True, dropout=0.3)
    made.begin("sft", StageSettings())
    made.step(batch(LENGTHS))
    made.close()
    assert torch.get_rng_state().equal(before)
    assert torch.are_deterministic_algorithms_enabled() == mode
