"""Weights published in 16 bits: the trainer computes with exactly these, and its masters lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file

from composer_core.types import TrainBatch
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings
from composer_plugin_policy.engine import Engine
from composer_testing.fakes.policy import TinyPolicy

SETTINGS = StageSettings(learning_rate=1e-6, loss_scale_tokens=10, beta=0.1)
LENGTHS, REWARDS = (9, 14), (1.0, 0.0)


@pytest.fixture
def trainer(context: Callable[..., Any]) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(published: str = "bf16", **policy: Any) -> Engine:
        made.append(Engine(PolicyTrainerConfig(published=published), context(**policy)))
        made[-1].begin("rl", SETTINGS)
        return made[-1]

    yield make
    for each in reversed(made):
        each.close()


def exported(engine: Engine, folder: Path) -> dict[str, torch.Tensor]:
    engine.export(folder / "weights.safetensors")
    return load_file(folder / "weights.safetensors")


def logps(engine: Engine, batch: TrainBatch) -> list[bytes]:
    return [column.data for column in engine.logprobs(batch)]


@pytest.mark.parametrize("experts", [0, 8])
def test_a_sampler_that_loads_what_is_published_computes_the_trainers_own_numbers(trainer, batch, tmp_path, experts):
    made = trainer(experts=experts)
    for step in range(3):
        made.step(batch(LENGTHS, REWARDS, seed=step))
    written = exported(made, tmp_path)
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    sampler = trainer("own", experts=experts)
    sampler._model.load_state_dict(written)  # in fp32, as a sampler does
    assert logps(sampler, batch(LENGTHS, seed=7)) == logps(made, batch(LENGTHS, seed=7))


def test_parity_of_a_step_holds_with_the_log_probabilities_of_the_published_weights(trainer, batch, sequence, tmp_path):
    made, sampler = trainer(), trainer("own")
    made.step(batch(LENGTHS, REWARDS))
    sampler._model.load_state_dict(exported(made, tmp_path))
    asked = batch(LENGTHS, REWARDS, seed=1)
    told = sampler.logprobs(asked)
    rows = [evolve(row, behavior=logp, comparable=row.trained) for row, logp in zip(asked.sequences, told, strict=True)]
    metrics = made.step(evolve(asked, sequences=tuple(rows))).metrics
    assert metrics["parity_tokens"] > 0
    assert metrics["parity_max"] <= 1e-5


def test_steps_below_the_last_place_of_16_bits_add_up_as_without_rounding(trainer, batch, tmp_path):
    made, plain = trainer(), trainer("own")
    start = {name: tensor.clone() for name, tensor in plain._model.state_dict().items()}
    for _ in range(300):
        for each in (made, plain):
            each.step(evolve(batch(LENGTHS, REWARDS, seed=0), settings={"learning_rate": 1e-6}))
    made.save(tmp_path / "saved")
    masters = load_file(tmp_path / "saved/weights.safetensors")
    for name, tensor in plain._model.state_dict().items():
        moved, moved_too = tensor - start[name], masters[name] - start[name]
        assert moved.abs().max() > 1e-4
        assert torch.nn.functional.cosine_similarity(moved.flatten(), moved_too.flatten(), dim=0) > 0.9


def test_a_resumed_trainer_goes_on_with_the_same_bytes(trainer, batch, tmp_path):
    whole, killed, resumed = trainer(), trainer(), trainer()
    for each in (whole, killed):
        each.step(batch(LENGTHS, REWARDS, seed=0))
    killed.save(tmp_path)
    resumed.load(tmp_path)
    resumed.begin("rl", SETTINGS)
    for each in (whole, resumed):
        each.step(batch(LENGTHS, REWARDS, seed=1))
        each.save(tmp_path / str(id(each)))
    saved, again = (load_file(tmp_path / str(id(each)) / "weights.safetensors") for each in (whole, resumed))
    assert all(tensor.equal(again[name]) for name, tensor in saved.items())
    assert all(t.equal(exported(resumed, tmp_path)[name]) for name, t in exported(whole, tmp_path).items())


def test_saving_leaves_the_weights_that_are_computed_with_as_they_were(trainer, batch, tmp_path):
    made = trainer()
    made.step(batch(LENGTHS, REWARDS))
    before = logps(made, batch(LENGTHS))
    made.save(tmp_path)
    assert logps(made, batch(LENGTHS)) == before


def test_buffers_and_frozen_parameters_keep_their_own_numbers(context, batch, tmp_path):
    class Held(TinyPolicy):
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            self.register_buffer("bias", torch.tensor([1.0000001]))
            self.norm.weight.requires_grad_(False)

    made = Engine(PolicyTrainerConfig(published="bf16"), evolve(context(), get=lambda kind: Held()))
    written = exported(made, tmp_path)
    made.close()
    kept = {name for name, tensor in written.items() if tensor.dtype is torch.float32}
    assert kept == {"bias", "norm.weight"}
