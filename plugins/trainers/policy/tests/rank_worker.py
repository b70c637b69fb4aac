"""One rank of test_ranks.py: three steps, whose gradients are written to a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from attrs import evolve
from safetensors.torch import save_file

from composer_core.columns import Column
from composer_core.protocols import Algorithm, BuildContext
from composer_core.records import resolve
from composer_core.types import GroupRewards, TrainBatch
from composer_plugin_policy import plugin
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings
from composer_plugin_policy.engine import Engine
from composer_testing.contracts.trainers import sample_sequence
from composer_testing.fakes.policy import TinyPolicy

LENGTHS = (30, 5, 17, 9, 21)
METRICS = ("loss", "grad_norm", "trained_tokens", "tokens", "entropy", "weight_mean", "parity_tokens", "parity_p999")


def _batch(objective: str) -> TrainBatch:
    sequences = tuple(sample_sequence(episode, length) for episode, length in enumerate(LENGTHS))
    sequences = tuple(evolve(sequence, comparable=Column.of("U8", [1] * len(sequence.ids))) for sequence in sequences)
    groups = (GroupRewards("g", tuple(range(len(LENGTHS))), (1.0, 0.0, 0.5, 0.0, 0.25)),)
    return TrainBatch("s", objective, sequences, len(LENGTHS), groups if objective != "nll" else ())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    spec = next(iter(plugin.composer_algorithms()))
    algorithm = Algorithm("policy/dr_grpo", spec.advantage, resolve(spec.objective), spec.config(), spec.needs)
    made = {"policy": lambda: TinyPolicy(seed=rank), "algorithms": lambda: algorithm}
    engine = Engine(PolicyTrainerConfig(), BuildContext(folder, get=lambda kind: made[kind](), settings={"threads": 1}))
    found = {"start": torch.cat([p.detach().flatten().clone() for p in engine._parameters])}
    settings = StageSettings(gradient_clip=0, loss_scale_tokens=20, micro_batch_tokens=40, learning_rate=1e-2)
    for name, objective, beta in (("rl", "policy/dr_grpo", 0.0), ("kl", "policy/dr_grpo", 0.2), ("nll", "nll", 0.0)):
        engine.begin(name, evolve(settings, beta=beta))
        for _ in range(2 if beta else 1):  # the first step with KL still stands on its reference
            stats = engine.step(_batch(objective))
        found[name] = torch.cat([p.grad.flatten().clone() for p in engine._parameters])
        if name == "rl":
            found["metrics"] = torch.tensor([stats.metrics[key] for key in METRICS], dtype=torch.float64)
    found["weights"] = torch.cat([p.detach().flatten().clone() for p in engine._parameters])
    save_file(found, folder / f"rank{rank}.safetensors")
    engine.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
