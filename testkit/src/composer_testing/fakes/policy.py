"""A policy network of a few thousand weights, for tests of trainers. Needs torch; nothing else here does.

Legend: B rows, T tokens, D width, N picked tokens, E experts, K experts per token.

One layer of causal attention and, if asked for, one routed layer whose experts can be replayed; the head is tied to
the embedding, so its state dict has two names for one memory. It keeps no cache: samplers need a real model.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from composer_core.errors import CapabilityError
from composer_core.tensors import PolicyOutput, RouteShape


class TinyPolicy(nn.Module):
    """Satisfies `tensors.PolicyModel`, the cache excepted. The same seed gives the same weights."""

    def __init__(self, *, vocab: int = 32, width: int = 16, experts: int = 0, dropout: float = 0.0, seed: int = 0):
        super().__init__()
        self.vocab_size = vocab
        self.routes = RouteShape(layers=1, top_k=2, experts=experts) if experts else None
        self.calls = 0
        """Forward passes so far."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Embedding(vocab, width)
            nn.init.normal_(self.embed.weight, std=0.25)
            self.head = nn.Linear(width, vocab, bias=False)
            self.head.weight = self.embed.weight
            self.mix = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width)
            self.norm = nn.LayerNorm(width)
            self.dropout = nn.Dropout(dropout)
            if experts:
                self.router = nn.Linear(width, experts, bias=False)
                self.experts = nn.Parameter(torch.randn(experts, width, width) / width**0.5)

    def new_cache(self, rows: int, capacity: int) -> Any:
        raise CapabilityError("TinyPolicy keeps no cache", fix="use a model that does")

    def trunk(
        self,
        ids_BT: torch.Tensor,
        lengths_B: torch.Tensor,
        *,
        cache: Any = None,
        slots_B: torch.Tensor | None = None,
        past_B: torch.Tensor | None = None,
        replay_BTLK: torch.Tensor | None = None,
        replay_tau: float = 0.0,
        want_routes: bool = False,
    ) -> PolicyOutput:
        """See `tensors.PolicyModel`."""
        self.calls += 1
        x_BTD = self.embed(ids_BT)
        q_BTD, k_BTD, v_BTD = self.mix(x_BTD).chunk(3, dim=-1)
        scores_BTT = q_BTD @ k_BTD.transpose(1, 2) / q_BTD.shape[-1] ** 0.5
        future_TT = torch.ones_like(scores_BTT[0], dtype=torch.bool).triu(1)
        x_BTD = x_BTD + self.out(scores_BTT.masked_fill(future_TT, -torch.inf).softmax(-1) @ v_BTD)
        routes_BTLK = own_BTLK = None
        if self.routes is not None:
            replay_BTK = None if replay_BTLK is None else replay_BTLK[:, :, 0].long()
            gates_BTE = self.router(x_BTD).softmax(-1)
            own_BTK = gates_BTE.topk(2).indices
            ids_BTK = own_BTK if replay_BTK is None else _kept(gates_BTE, own_BTK, replay_BTK, replay_tau)
            x_BTD = x_BTD + self._routed(x_BTD, gates_BTE, ids_BTK)
            if want_routes:
                routes_BTLK = ids_BTK[:, :, None].to(self.routes.dtype)
                own_BTLK = None if replay_BTK is None else own_BTK[:, :, None].to(self.routes.dtype)
        return PolicyOutput(self.norm(self.dropout(x_BTD)), routes_BTLK, own_BTLK)

    def _routed(self, x_BTD: torch.Tensor, gates_BTE: torch.Tensor, ids_BTK: torch.Tensor) -> torch.Tensor:
        weights_BTK = gates_BTE.gather(-1, ids_BTK)
        weights_BTK = weights_BTK / weights_BTK.sum(-1, keepdim=True)
        picked_BTE = torch.zeros_like(gates_BTE).scatter_add(-1, ids_BTK, weights_BTK)
        each_BTED = functional.silu(torch.einsum("btd,edf->btef", x_BTD, self.experts))
        return torch.einsum("bte,bted->btd", picked_BTE, each_BTED)

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """[N, V]."""
        logits_NV: torch.Tensor = self.head(hidden_ND)
        return logits_NV


def _kept(gates_BTE: torch.Tensor, own_BTK: torch.Tensor, replay_BTK: torch.Tensor, tau: float) -> torch.Tensor:
    """Token by token, as `PolicyModel.trunk` says."""
    found = replay_BTK.clone()
    for row, token in itertools.product(*map(range, replay_BTK.shape[:2])):
        gates, own = gates_BTE[row, token], own_BTK[row, token].tolist()
        kept = [one for one in replay_BTK[row, token].tolist() if gates[one] >= tau * gates[own].min()]
        found[row, token] = torch.tensor([*kept, *(one for one in own if one not in kept)][: len(own)])
    return found
