"""What a policy network must do so that any sampler and any trainer can drive it.

Legend: B rows, T new tokens a row (right-padded), D width, N = tokens picked out of B x T, V vocabulary, L MoE layers,
K experts per token. A policy is a `torch.nn.Module`; its state dict is what is published. The head is apart from the
trunk, because logits are wanted on few of the tokens that are forwarded.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from attrs import frozen


@frozen
class RouteShape:
    """Shape of the expert ids of one token: `layers` x `top_k` values below `experts`."""

    layers: int
    top_k: int
    experts: int

    @property
    def dtype(self) -> torch.dtype:
        """uint8 up to 256 experts, else uint16 (RL.md section 4)."""
        return torch.uint8 if self.experts <= 256 else torch.uint16


@frozen
class PolicyOutput:
    hidden_BTD: torch.Tensor
    """Final hidden states, after the last norm; rows at or past a row's length are undefined."""
    routes_BTLK: torch.Tensor | None = None
    """Expert ids used, in `RouteShape.dtype`; None for a dense model or when not asked for."""
    own_BTLK: torch.Tensor | None = None
    """Those that the routers would have chosen; None unless others were replayed and `want_routes` is set."""


class KVCache(Protocol):
    """Keys and values of `rows` independent sequences of up to `capacity` tokens."""

    rows: int
    capacity: int

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """Copy the first `tokens` entries of row `source` over those of `targets` (a group's shared prefix)."""
        ...


class PolicyModel(Protocol):
    """A decoder-only transformer."""

    vocab_size: int
    routes: RouteShape | None
    """None for a dense model."""

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        """Room for `rows` sequences of up to `capacity` tokens."""
        ...

    def trunk(
        self,
        ids_BT: torch.Tensor,
        lengths_B: torch.Tensor,
        *,
        cache: KVCache | None = None,
        slots_B: torch.Tensor | None = None,
        past_B: torch.Tensor | None = None,
        replay_BTLK: torch.Tensor | None = None,
        replay_tau: float = 0.0,
        want_routes: bool = False,
    ) -> PolicyOutput:
        """Forward new tokens.

        ids_BT int64; lengths_B int64 counts the real tokens of each row. With a cache, row b continues the sequence in
        cache row `slots_B[b]`, which holds `past_B[b]` tokens; keys and values of its real tokens are stored behind
        them. Without one, rows start at position 0. `replay_BTLK` overrides the routers' choice of experts; gate
        values are gathered at the replayed ids and renormalized as the model does. A replayed id is kept if its gate
        is at least `replay_tau` times the smallest gate of the router's own choice; the place of one that is not goes
        to the router's own best expert among those not kept.
        """
        ...

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """fp32 or model dtype [N, V] from final hidden states."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """As of `torch.nn.Module`: what a trainer exports."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """As of `torch.nn.Module`: what a sampler loads."""
        ...

    def parameters(self) -> Any:
        """As of `torch.nn.Module`: what an optimizer moves."""
        ...

    def train(self, mode: bool = True) -> Any:
        """As of `torch.nn.Module`."""
        ...

    def eval(self) -> Any:
        """As of `torch.nn.Module`."""
        ...
