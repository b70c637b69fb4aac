"""The loss of trained tokens, in torch. Legend: T trained tokens of a micro-batch."""

import torch

from composer_core.tensors import ObjectiveInputs
from composer_plugin_my_name.plugin import MyNameConfig


def objective(inputs: ObjectiveInputs, config: MyNameConfig) -> torch.Tensor:
    """-w_T x A_T x logp_T with w_T = min(exp(logp_T - behavior_T), cap), detached: one loss a token, fp32 [T].

    The trainer sums over tokens and divides once, so nothing is averaged here. The weight corrects for a sampler that
    held older weights, or rounds differently; the cap keeps it bounded (truncated importance sampling, Ionides 2008).
    """
    assert inputs.behavior_T is not None, "the record needs behavior"
    weight_T = (inputs.logp_T.detach() - inputs.behavior_T).exp().clamp(max=config.cap)
    return -weight_T * inputs.advantage_T * inputs.logp_T
