"""Log-probabilities of given tokens: the one implementation that sampler and trainer share.

Legend: N tokens, V vocabulary. Parity between sampler and trainer (RL.md section 4) is about the network in front of
this function; the function itself cannot differ, because there is only one.
"""

from __future__ import annotations

import torch


def token_logprobs(logits_NV: torch.Tensor, targets_N: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """log softmax(logits / temperature) at `targets_N`, in fp32; shape [N], differentiable in the logits.

    `temperature` must be positive; greedy sampling (temperature 0) reports log-probabilities at temperature 1.
    """
    scaled_NV = logits_NV.float()
    if temperature != 1.0:
        scaled_NV = scaled_NV / temperature
    picked_N = scaled_NV.gather(-1, targets_N.long().unsqueeze(-1)).squeeze(-1)
    return picked_N - torch.logsumexp(scaled_NV, dim=-1)
