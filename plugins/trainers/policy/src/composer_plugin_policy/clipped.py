"""Losses that clip how far a policy moves from the one that sampled, in torch. Legend: T trained tokens, S sequences.

All of them clip the ratio to `behavior`, the log-probability under the weights that sampled the token. That is what the
papers call the old policy; the trainer's own recomputation before the step would make the ratio 1, since a batch is
trained on once. So the ratio differs from 1 where tokens are stale, and `check` refuses these where none can be.

As for every objective, losses are summed and divided by one constant (RL.md section 1), whatever mean a paper takes:
over tokens of a batch (DAPO, CISPO), over a sequence's tokens first (GSPO).
"""

from __future__ import annotations

from typing import Protocol

import torch

from composer_core.errors import TrainerError
from composer_core.tensors import ObjectiveInputs
from composer_plugin_policy.config import CispoConfig, GspoConfig

FARTHEST = 20.0
"""Logarithms of ratios are bounded by this, far beyond any clip, so that their exponentials stay finite."""


class Clips(Protocol):
    """Settings of an objective that clips on both sides."""

    @property
    def clip_low(self) -> float:
        """Below 1."""
        ...

    @property
    def clip_high(self) -> float:
        """Above 1."""
        ...


def ppo(inputs: ObjectiveInputs, config: Clips) -> torch.Tensor:
    """-min(r_T A_T, clip(r_T, 1 - low, 1 + high) A_T) with r_T = exp(logp_T - behavior_T).

    With low = high this is PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347, equation 7); with a higher
    upper bound it is DAPO's Clip-Higher (Yu et al. 2025, arXiv 2503.14476, equation 10), which leaves unlikely tokens
    room to become likely.
    """
    return _surrogate(_log_ratio(inputs).exp(), inputs.advantage_T, config)


def gspo(inputs: ObjectiveInputs, config: GspoConfig) -> torch.Tensor:
    """The same with the ratio of the token's sequence, s_S = exp(mean over its tokens of logp - behavior).

    Its gradient reaches each token as s_S A_T grad logp_T, the form that the paper calls GSPO-token and that is GSPO
    itself where a sequence has one advantage (Zheng et al. 2025, arXiv 2507.18071, sections 4.1 and 4.3).
    """
    delta_T = _log_ratio(inputs)
    if inputs.sequence_T is None:
        raise TrainerError("gspo needs to know which tokens belong together", where="ObjectiveInputs.sequence_T")
    index_T = torch.unique(inputs.sequence_T, return_inverse=True)[1]
    sums_S = delta_T.new_zeros(int(index_T.max()) + 1).index_add_(0, index_T, delta_T.detach())
    ratio_T = (sums_S / index_T.bincount())[index_T].exp()
    moving_T = ratio_T * (inputs.logp_T - inputs.logp_T.detach()).exp()
    return _surrogate(moving_T, inputs.advantage_T, config)


def cispo(inputs: ObjectiveInputs, config: CispoConfig) -> torch.Tensor:
    """-w_T A_T logp_T with w_T = min(exp(logp_T - behavior_T), cap), detached: every token keeps a gradient.

    Clips the weight and not the update, so tokens that have become likely are not left out (MiniMax-M1, 2025, arXiv
    2506.13585, section 3.1; as there, no lower bound).
    """
    weight_T = _log_ratio(inputs).detach().exp().clamp(max=config.cap)
    return -weight_T * inputs.advantage_T * inputs.logp_T


def _log_ratio(inputs: ObjectiveInputs) -> torch.Tensor:
    if inputs.behavior_T is None:
        raise TrainerError(
            "a clipped objective needs the sampler's log-probabilities",
            where="TrainSequence.behavior",
            fix='train from a sampler that offers "sampler.logprobs"',
        )
    return (inputs.logp_T - inputs.behavior_T).clamp(-FARTHEST, FARTHEST)


def _surrogate(ratio_T: torch.Tensor, advantage_T: torch.Tensor, config: Clips) -> torch.Tensor:
    clipped_T = ratio_T.clamp(1 - config.clip_low, 1 + config.clip_high)
    return -torch.minimum(ratio_T * advantage_T, clipped_T * advantage_T)
