"""Top-k routing in one kernel: scores, choice, gate values, and how many tokens each expert got. Legend: see `ops`.

A program holds the scores of some tokens against all experts (E2, the power of two above E) and takes the best k times;
equal scores go to the lower expert. Loads are integers, so the order of their atomics does not show.
"""

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.kernels.launch import launch, op
from composer_plugin_mxfp8.kernels.numerics import bits, widen
from composer_plugin_mxfp8.kernels.swiglu import sigmoid
from composer_plugin_mxfp8.ops import Routes, Score
from composer_plugin_mxfp8.reference import balance_bias

__all__ = ["balance_bias", "route"]

SCORES = 4096
"""Scores that a program holds, measured on an H200; of 16 tokens at most."""


@triton.jit
def route_tile(
    logits, bias, ids, weights, load, tokens, experts, k,
    SOFTMAX: tl.constexpr, BIASED: tl.constexpr, NORMALIZE: tl.constexpr,
    TOKENS: tl.constexpr, E2: tl.constexpr, K2: tl.constexpr,
):  # fmt: skip
    """The routes of TOKENS tokens."""
    token, expert = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, E2)
    exists = (token < tokens)[:, None] & (expert < experts)[None, :]
    logit = widen(tl.load(logits + token.to(tl.int64)[:, None] * experts + expert[None, :], mask=exists, other=0))
    if SOFTMAX:
        logit = tl.where((expert < experts)[None, :], logit, float("-inf"))
        power = tl.exp(logit - tl.max(logit, 1)[:, None])
        score = power / tl.sum(power, 1)[:, None]
    else:
        score = sigmoid(logit)
    choice = score
    if BIASED:
        choice += tl.load(bias + expert, mask=expert < experts, other=0)[None, :]
    choice = tl.where((expert < experts)[None, :], choice, float("-inf"))
    place = tl.arange(0, K2)
    chosen = tl.zeros((TOKENS, K2), tl.int32)
    gates = tl.zeros((TOKENS, K2), tl.float32)
    for k_now in range(k):
        best = tl.argmax(choice, 1)
        hit = expert[None, :] == best[:, None]
        chosen = tl.where((place == k_now)[None, :], best[:, None], chosen)
        gates = tl.where((place == k_now)[None, :], tl.sum(tl.where(hit, score, 0.0), 1)[:, None], gates)
        choice = tl.where(hit, float("-inf"), choice)
    taken = exists & (choice == float("-inf"))
    tl.atomic_add(load + expert, tl.sum(taken.to(tl.int32), 0), mask=expert < experts)
    if NORMALIZE:
        gates = gates / tl.sum(gates, 1)[:, None]
    at, real = token[:, None] * k + place[None, :], (token < tokens)[:, None] & (place < k)[None, :]
    tl.store(ids + at, chosen.to(tl.int64), mask=real)
    tl.store(weights + at, gates, mask=real)


@op
def _route(
    logits: torch.Tensor, k: int, bias: torch.Tensor | None, softmax: bool, normalize: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, experts = logits.shape
    ids = logits.new_empty((tokens, k), dtype=torch.int64)
    weights, load = ids.new_empty(ids.shape, dtype=torch.float32), ids.new_zeros(experts, dtype=torch.int32)
    bias = None if bias is None else bias.float().contiguous()
    e2 = triton.next_power_of_2(experts)
    together = max(1, min(16, SCORES // e2))
    launch(
        route_tile, (triton.cdiv(tokens, together),), bits(logits.contiguous()), bias, ids, weights, load, tokens,
        experts, k, softmax, bias is not None, normalize, together, e2, triton.next_power_of_2(k),
    )  # fmt: skip
    return ids, weights, load


def route(
    logits_NE: torch.Tensor,
    k: int,
    bias_E: torch.Tensor | None = None,
    score: Score = "softmax",
    normalize: bool = True,
) -> Routes:
    """See `Ops.route`."""
    return Routes(*_route(logits_NE, k, bias_E, score == "softmax", normalize))
