"""Losses of trained tokens, in torch. Legend: T trained tokens of a micro-batch.

An objective returns one loss a token; the trainer sums them and divides once, so it never averages itself. The
gradient may flow through `logp_T` only.
"""

from __future__ import annotations

from typing import Any

import torch

from composer_core.errors import TrainerError
from composer_core.tensors import ObjectiveInputs


def importance(inputs: ObjectiveInputs, cap: float) -> torch.Tensor:
    """w_T = min(exp(old - behavior), cap), detached: how much likelier the trainer holds each token than its sampler.

    Truncated importance sampling (Ionides 2008): unbiased where the cap does not bind, bounded everywhere.
    """
    if inputs.old_T is None or inputs.behavior_T is None:
        raise TrainerError(
            "pg_tis needs the sampler's log-probabilities",
            where="TrainSequence.behavior",
            fix='train from a sampler that offers "sampler.logprobs"',
        )
    return (inputs.old_T - inputs.behavior_T).exp().clamp(max=cap).detach()


def pg_tis(inputs: ObjectiveInputs, config: Any) -> torch.Tensor:
    """-w_T x A_T x logp_T: the policy gradient under truncated importance sampling; `config.cap` is C."""
    return -importance(inputs, config.cap) * inputs.advantage_T * inputs.logp_T


def nll(inputs: ObjectiveInputs, config: Any = None) -> torch.Tensor:
    """-logp_T: the loss of pretrain and sft."""
    return -inputs.logp_T
