"""Drawing tokens: a pure function of logits, temperature and counter-based noise.

Legend: N rows, V vocabulary. A token is the inverse of the cumulative distribution at `noise.uniform(key, position)`,
so the same key draws the same token wherever the row stands in a batch. Sums are in fp64: a token of probability 0 is
never drawn, and rounding of a long cumulative sum cannot move a boundary by more than the logits' own rounding.
"""

from __future__ import annotations

import torch

from composer_core.tensors import token_logprobs, uniform


def draw(
    logits_NV: torch.Tensor, temperatures: list[float], keys: list[int], positions: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64 [N] and log-probabilities fp32 [N] of the distribution each was drawn from; temperature 0 is greedy."""
    noise_N = uniform(torch.tensor(keys), torch.tensor(positions)).to(logits_NV.device)
    distinct = set(temperatures)
    if len(distinct) == 1:
        return _draw_rows(logits_NV, distinct.pop(), noise_N)
    ids_N = torch.empty(len(temperatures), dtype=torch.int64, device=logits_NV.device)
    logprobs_N = torch.empty(len(temperatures), dtype=torch.float32, device=logits_NV.device)
    for temperature in sorted(distinct):
        rows = torch.tensor([index for index, value in enumerate(temperatures) if value == temperature])
        ids_N[rows], logprobs_N[rows] = _draw_rows(logits_NV[rows], temperature, noise_N[rows])
    return ids_N, logprobs_N


def _draw_rows(logits_NV: torch.Tensor, temperature: float, noise_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows at one temperature."""
    if temperature <= 0:
        ids_N = logits_NV.argmax(-1)
        return ids_N, token_logprobs(logits_NV, ids_N)
    scaled_NV = logits_NV.float() if temperature == 1.0 else logits_NV.float() / temperature
    mass_NV = (scaled_NV - scaled_NV.amax(-1, keepdim=True)).exp().cumsum(-1, dtype=torch.float64)
    target_N1 = noise_N.double()[:, None] * mass_NV[:, -1:]
    ids_N = torch.searchsorted(mass_NV, target_N1, right=True).squeeze(-1).clamp_(max=logits_NV.shape[-1] - 1)
    return ids_N, token_logprobs(logits_NV, ids_N, temperature)
