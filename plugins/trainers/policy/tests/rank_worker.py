"""One rank of test_ranks.py: `python rank_worker.py PLAY FOLDER` plays its part and writes down what it saw."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from safetensors.torch import save_file

from composer_core.columns import Column
from composer_core.errors import TrainerError
from composer_core.protocols import Algorithm, BuildContext
from composer_core.records import resolve
from composer_core.types import GroupRewards, TrainBatch
from composer_plugin_policy import plugin
from composer_plugin_policy.batching import cut, make_rows
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings
from composer_plugin_policy.engine import Engine
from composer_plugin_policy.trainer import PolicyTrainer
from composer_testing.contracts.trainers import sample_sequence
from composer_testing.fakes.policy import TinyPolicy

RANK = int(os.environ.get("RANK", "0"))
LENGTHS = (30, 5, 17, 9, 21)
CUTS = {1: 150, 2: 60, 4: 30}
"""Micro-batches -> a budget that cuts LENGTHS into as many; two ranks get unequal numbers of them, or none."""
METRICS = ("loss", "grad_norm", "trained_tokens", "tokens", "entropy", "weight_mean", "parity_tokens", "parity_p999")
SETTINGS = StageSettings(
    gradient_clip=0,
    loss_scale_tokens=20,
    micro_batch_tokens=40,
    learning_rate=1e-2,
    parity_stop=0,  # nobody has sampled these rows
)
SHAPE = {"vocab_size": 32, "width": 32, "heads": 2, "kv_heads": 1, "expert_count": 8, "expert_width": 32}


def batch(objective: str = "policy/dr_grpo", step: int = 0) -> TrainBatch:
    sequences = tuple(sample_sequence(episode, length, step) for episode, length in enumerate(LENGTHS))
    sequences = tuple(evolve(sequence, comparable=Column.of("U8", [1] * len(sequence.ids))) for sequence in sequences)
    groups = (GroupRewards("g", tuple(range(len(LENGTHS))), (1.0, 0.0, 0.5, 0.0, 0.25)),)
    return TrainBatch("s", objective, sequences, len(LENGTHS), groups if objective != "nll" else ())


def tiny(seed: int = 0) -> Any:
    """The public preset; each rank draws other weights."""
    config = resolve("composer_plugin_hf.config:TinyMoeConfig")(**SHAPE, init_std=0.2)
    return resolve("composer_plugin_hf.presets:build_tiny_moe")(config, BuildContext(Path(), seed=seed))


def context(folder: Path, policy: Callable[[], Any] = lambda: TinyPolicy(seed=RANK)) -> BuildContext:
    spec = next(iter(plugin.composer_algorithms()))
    algorithm = Algorithm("policy/dr_grpo", spec.advantage, resolve(spec.objective), spec.config(), spec.needs)
    made = {"policy": policy, "algorithms": lambda: algorithm}
    return BuildContext(folder, get=lambda kind: made[kind](), settings={"threads": 1})


def flat(engine: Engine, of: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    return torch.cat([of(parameter).detach().flatten().clone() for parameter in engine._parameters])


def gradients(engine: Engine, found: dict[str, torch.Tensor]) -> None:
    """Of each kind of batch, and of one batch in every cut and order."""
    found["start"] = flat(engine, lambda p: p)
    for name, objective, beta in (("rl", "policy/dr_grpo", 0.0), ("kl", "policy/dr_grpo", 0.2), ("nll", "nll", 0.0)):
        engine.begin(name, evolve(SETTINGS, beta=beta))
        for _ in range(2 if beta else 1):  # the first step with KL still stands on its reference
            stats = engine.step(batch(objective))
        found[name] = flat(engine, lambda p: p.grad)
        if name == "rl":
            found["parity_tokens"] = torch.tensor(stats.metrics["parity_tokens"])
            found["metrics"] = torch.tensor([stats.metrics[key] for key in METRICS], dtype=torch.float64)
    rows = make_rows(batch().sequences)
    found["counts"] = torch.tensor([len(cut(rows, budget, in_order=False)) for budget in CUTS.values()])
    for cuts, budget in CUTS.items():
        for order in (1, -1):
            engine.begin("rl", evolve(SETTINGS, micro_batch_tokens=budget, learning_rate=1e-12))
            given = batch()
            engine.step(evolve(given, sequences=given.sequences[::order]))
            found[f"cut{cuts}{order:+}"] = flat(engine, lambda p: p.grad)
    found["weights"] = flat(engine, lambda p: p)


def curve(engine: Engine, found: dict[str, torch.Tensor]) -> None:
    """Losses of a mixture of experts over imitation and reinforcement."""
    losses = []
    for stage, objective, steps in (("sft", "nll", 12), ("rl", "policy/dr_grpo", 8)):
        engine.begin(stage, evolve(SETTINGS, gradient_clip=1.0, learning_rate=3e-3, warmup_steps=3))
        losses += [engine.step(batch(objective, step)).metrics["loss"] for step in range(steps)]
    found["losses"] = torch.tensor(losses, dtype=torch.float64)


def checkpoints(engine: Engine, folder: Path) -> None:
    """Saved in the middle, then twice trained to the end: at once, and after loading. Each rank names its own files."""
    settings = evolve(SETTINGS, beta=0.1)
    engine.begin("rl", settings)
    for step in range(2):
        engine.step(batch(step=step))
    engine.save(folder / f"saved{RANK}")
    for name in ("whole", "resumed"):
        engine.step(batch(step=2))
        engine.export(folder / f"{name}{RANK}.safetensors")
        engine.load(folder / "saved0")
        engine.begin("rl", settings)


def publishes(engine: Engine, folder: Path, found: dict[str, torch.Tensor]) -> None:
    """16 bits of each weight after steps of unequal shares, and what this rank computes with."""
    engine.begin("rl", SETTINGS)
    for step in range(3):
        engine.step(batch(step=step))
    engine.export(folder / f"published{RANK}.safetensors")
    found |= {f"computes/{name}": tensor.clone() for name, tensor in engine._model.state_dict().items()}
    with engine._masters.in_place():
        found["masters"] = flat(engine, lambda p: p)


async def fails(folder: Path, how: str) -> str:
    """One rank fails in its second step in some way; what each rank is told."""
    how, _, victim = how.partition("@")
    policy = TinyPolicy()
    config = PolicyTrainerConfig(rank_timeout_s=8 if how == "hangs" else 600)
    trainer = PolicyTrainer(config, context(folder, lambda: policy))
    await trainer.begin("sft", SETTINGS)
    await trainer.step(batch("nll"))
    if int(victim) == RANK:

        def forward(*args: Any, **fields: Any) -> Any:
            if how == "raises":
                raise RuntimeError("this card has fallen off the bus")
            time.sleep(0.5)  # the others are waiting by now
            if how == "hangs":
                time.sleep(3600)
            os.kill(os.getpid(), signal.SIGKILL)

        policy.trunk = forward  # type: ignore[method-assign]
    found = ""
    for _ in range(2):
        try:
            await trainer.step(batch("nll", 1))
        except TrainerError as error:
            found += f"{error}\n\n"
    await trainer.close()
    return found


def main(play: str, folder: Path) -> None:
    torch.set_num_threads(1)
    if play != "works":
        (folder / f"rank{RANK}.txt").write_text(asyncio.run(fails(folder, play)))
        return
    found: dict[str, torch.Tensor] = {}
    first, second = (
        Engine(PolicyTrainerConfig(), made) for made in (context(folder), context(folder, lambda: tiny(RANK)))
    )
    third = Engine(PolicyTrainerConfig(published="bf16"), context(folder))
    gradients(first, found)
    checkpoints(first, folder)
    curve(second, found)
    publishes(third, folder, found)
    save_file(found, folder / f"rank{RANK}.safetensors")
    for each in (first, second, third):
        each.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
