"""What the trainer holds: weights, gradients, AdamW's two moments, and the largest micro-batch. Thin: no torch."""

from __future__ import annotations

from typing import Any

from composer_core import Footprint, ModelSize, RunView
from composer_core.types import Limits
from composer_plugin_policy.config import PolicyTrainerConfig, StageSettings

MIB = 1 << 20
IMPORTS = {"torch": 193 * MIB, "accelerate": 5 * MIB}
"""Measured with torch 2.13.0 (CPU) and accelerate 1.15 on Linux; `check --probe` measures them anew."""
LOGIT_BYTES = 16
"""Of one logit of a trained token: itself, two gradients that meet at it, and their sum."""
LESSON_BYTES = 32
"""The same where text feedback is given: teacher's and student's, their logarithms, and what their distance is made
of. The teacher's other tensors are gone before the student is read."""
KEPT_SHARE = 1.35
"""What the allocator holds for a micro-batch against what is live: freed tensors of other sizes stay; measured."""


def footprint(config: PolicyTrainerConfig, run: RunView) -> Footprint | None:
    """None where the model does not tell its size."""
    size = run.model_size
    if size is None:
        return None
    weights = size.weight_bytes
    settings = [StageSettings(**choice.settings) for choice in run.config.stages]
    keeps_reference = any(stage.beta for stage in settings)
    batches = [
        micro_batch_bytes(choice.stage, stage, run.config.limits, size)
        for choice, stage in zip(run.config.stages, settings, strict=True)
    ]
    parts = {
        "weights": weights,
        "gradients": weights,
        "moments of AdamW": 2 * weights,
        "masters in fp32": weights * (config.published == "bf16"),
        "reference weights": weights * keeps_reference,
        "a checkpoint as it is written": 2 * weights,
        "activations of a micro-batch": max(batches, default=0),
    }
    return Footprint(parts, IMPORTS, checkpoint_bytes=(3 + keeps_reference) * weights)


def micro_batch_bytes(stage: Any, settings: StageSettings, limits: Any, size: ModelSize) -> int:
    """What the largest micro-batch of a stage takes: at most its budget, unless one row is longer."""
    window = limits.get("context_tokens", Limits().context_tokens)
    sampled = limits.get("tokens", Limits().tokens)
    if stage.kind == "pretrain":
        row, rows, trained = stage.window_tokens, stage.batch_windows, 1.0
    else:
        row, trained = window, min(1.0, sampled / window)
        rows = stage.batch_episodes if stage.kind == "sft" else stage.groups_per_step * stage.group_size
    tokens = row * max(1, min(rows, settings.micro_batch_tokens // row))
    logit_bytes = LESSON_BYTES if settings.feedback else LOGIT_BYTES
    return int(KEPT_SHARE * tokens * (size.trained_bytes + trained * size.vocabulary * logit_bytes))
