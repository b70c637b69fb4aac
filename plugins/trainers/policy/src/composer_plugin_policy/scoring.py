"""Own log-probabilities of trained tokens.

Legend: B rows, T padded tokens, D width, N trained tokens, V vocabulary, L MoE layers, K experts per token.

The head runs on the hidden states that predict trained tokens and on no others, and the log-probability is the one
function that the sampler uses too, at the sampler's temperature.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import frozen

from composer_core.tensors import PolicyOutput, token_logprobs
from composer_plugin_policy.batching import MicroBatch


@frozen(eq=False)
class TokenScores:
    """What a forward pass says about the trained tokens of a micro-batch."""

    logp_N: torch.Tensor
    """fp32, differentiable unless scored without gradient."""
    logits_NV: torch.Tensor
    """Detached, before temperature: what entropy and accuracy are read from."""
    rerouted: tuple[int, int] = (0, 0)
    """(token, layer) pairs of real tokens whose experts differ from the replayed ones, and all such pairs."""
    disagreed: int = 0
    """Pairs whose replayed experts are not those that the router would have chosen itself."""


def score(model: Any, micro: MicroBatch, tau: float = 0.0) -> TokenScores:
    """Forward a micro-batch, replaying its routes where it has them; for `tau` see `PolicyModel.trunk`."""
    logits_NV, output = forward(model, micro, tau)
    logp_N = token_logprobs(logits_NV, micro.targets_N, micro.temperature)
    rerouted, disagreed = (_differing(micro, routes) for routes in (output.routes_BTLK, output.own_BTLK))
    return TokenScores(logp_N, logits_NV.detach(), rerouted, disagreed[0])


def forward(model: Any, micro: MicroBatch, tau: float = 0.0) -> tuple[torch.Tensor, PolicyOutput]:
    """Logits [N, V] of the positions that predict the trained tokens, and the trunk's output."""
    replay = (
        {} if micro.replay_BTLK is None else {"replay_BTLK": micro.replay_BTLK, "replay_tau": tau, "want_routes": True}
    )
    output = model.trunk(micro.ids_BT, micro.lengths_B, **replay)
    return model.logits(output.hidden_BTD[micro.row_N, micro.input_N]), output


def entropy(logits_NV: torch.Tensor, temperature: float) -> torch.Tensor:
    """Nats of the distribution that each token is drawn from, [N]; tokens that cannot be drawn count 0."""
    logs_NV = torch.log_softmax(logits_NV.float() / temperature, dim=-1)
    return -(logs_NV.exp() * logs_NV.clamp(min=torch.finfo(torch.float32).min)).sum(-1)


def _differing(micro: MicroBatch, routes_BTLK: torch.Tensor | None) -> tuple[int, int]:
    """How many (token, layer) pairs of real tokens have other experts than the replayed ones, and all such pairs."""
    if micro.replay_BTLK is None or routes_BTLK is None:
        return (0, 0)
    real_BT = torch.arange(micro.ids_BT.shape[1], device=micro.ids_BT.device) < micro.lengths_B[:, None]
    used = routes_BTLK[real_BT].long().sort(-1).values
    given = micro.replay_BTLK[real_BT].long().sort(-1).values
    differ = (used != given).any(-1)
    return int(differ.sum()), differ.numel()


def episode_sums(values: Iterable[tuple[MicroBatch, torch.Tensor]], episodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(sum, count) of per-token values by episode, fp64 on the host."""
    total_E, count_E = torch.zeros(episodes, dtype=torch.float64), torch.zeros(episodes, dtype=torch.float64)
    for micro, values_N in values:
        index_N = micro.episode_N.cpu()
        total_E.index_add_(0, index_N, values_N.detach().double().cpu())
        count_E.index_add_(0, index_N, torch.ones(len(index_N), dtype=torch.float64))
    return total_E, count_E
