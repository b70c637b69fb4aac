"""The objective of `workshop/median`, in torch. Legend: T trained tokens of a micro-batch.

    loss_T = -stop_gradient(min(exp(logp_T - behavior_T), cap)) x A_T x logp_T

the clipped importance weights of CISPO (MiniMax-M1 2025, arXiv:2506.13585) without its lower bound: the weight is
clipped and the token is not, so every token keeps a gradient. It reads the sampler's log-probability alone
(`needs={"behavior"}`); the trainer divides the sum, an objective never averages.
"""

import torch

from composer_core.tensors import ObjectiveInputs
from composer_plugin_workshop.config import MedianConfig


def objective(inputs: ObjectiveInputs, config: MedianConfig) -> torch.Tensor:
    """One loss for each token, differentiable in `logp_T`."""
    assert inputs.behavior_T is not None  # the record needs it
    weight_T = (inputs.logp_T - inputs.behavior_T).exp().clamp(max=config.cap).detach()
    return -weight_T * inputs.advantage_T * inputs.logp_T
