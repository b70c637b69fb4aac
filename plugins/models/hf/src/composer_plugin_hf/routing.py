"""Recording and replaying the experts that routers choose, by hooks on a model's gate modules.

Legend: N = B x T tokens, L MoE layers, K experts per token, E experts.

A replayed id gets the gate value that the router computes for it now, renormalized as the model does, so the gradient
still reaches the router (RL.md section 4). With tau above 0, a replayed id that the router has turned away from gives
its place to the router's own choice. The hooks know two routers: softmax before the choice (Qwen3-MoE), and sigmoid
with a correction bias that takes part in the choice only (DeepSeek-V3, GLM-4.5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen

from composer_core.errors import ConfigError
from composer_core.tensors import RouteShape


class RouteTape:
    """What the gates of one forward pass are told, and what they did."""

    def __init__(self, gates: list[Any], model_type: str) -> None:
        self.gates = gates
        self.replay_NLK: torch.Tensor | None = None
        self.tau = 0.0
        self.record: list[torch.Tensor] | None = None
        self.own: list[torch.Tensor] = []
        for layer, gate in enumerate(gates):
            router = ROUTERS[model_type]
            assert router is not None, "a dense model has no gates"
            gate.register_forward_hook(_hook(self, layer, router))

    def shape(self) -> RouteShape | None:
        if not self.gates:
            return None
        return RouteShape(len(self.gates), int(self.gates[0].top_k), int(self.gates[0].num_experts))

    def begin(self, replay_BTLK: torch.Tensor | None, tau: float, want: bool) -> None:
        if replay_BTLK is not None and not self.gates:
            raise ConfigError("a dense model has no routes to replay", found=f"shape {list(replay_BTLK.shape)}")
        self.replay_NLK = None if replay_BTLK is None else replay_BTLK.flatten(0, 1).long()
        self.tau = tau
        self.record, self.own = [] if want and self.gates else None, []

    def end(self, rows: int, tokens: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The [B, T, L, K] ids that were used, and the routers' own where others were replayed; forgets the pass."""
        record, own = self.record, self.own if self.replay_NLK is not None else []
        self.record, self.own, self.replay_NLK = None, [], None
        return self._ids(record, rows, tokens), self._ids(own if record is not None else None, rows, tokens)

    def _ids(self, layers: list[torch.Tensor] | None, rows: int, tokens: int) -> torch.Tensor | None:
        shape = self.shape()
        if not layers or shape is None:
            return None
        return torch.stack(layers, 1).to(shape.dtype).view(rows, tokens, shape.layers, shape.top_k)


def _hook(tape: RouteTape, layer: int, router: Router) -> Any:
    def hook(gate: Any, _args: Any, output: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        logits_NE, chosen_NK, own_NK = output
        ids_NK = own_NK
        if tape.replay_NLK is not None:
            gates_NE = router.gates(logits_NE)
            ids_NK = refilled(gates_NE.detach(), own_NK, tape.replay_NLK[:, layer], tape.tau)
            chosen_NK = router.weights(gate, gates_NE.gather(1, ids_NK)).to(chosen_NK.dtype)
        if tape.record is not None:
            tape.record.append(ids_NK)
            tape.own.append(own_NK)
        return logits_NE, chosen_NK, ids_NK

    return hook


def refilled(gates_NE: torch.Tensor, own_NK: torch.Tensor, replay_NK: torch.Tensor, tau: float) -> torch.Tensor:
    """The ids to use: a replayed one if its gate >= tau x the smallest own gate, the rest from the own, best first.

    Kept ids stay in their order, so that nothing changes where all are kept. Gates are those that weights are made of,
    without a correction bias. Source: RL.md section 4.
    """
    if tau <= 0:
        return replay_NK
    own_gate_NK = gates_NE.gather(1, own_NK)
    keep_NK = gates_NE.gather(1, replay_NK) >= tau * own_gate_NK.amin(1, keepdim=True)
    best_NK = own_NK.gather(1, own_gate_NK.argsort(stable=True, dim=1, descending=True))
    kept_NK = replay_NK.where(keep_NK, -1)
    free_NK = (best_NK.unsqueeze(2) != kept_NK.unsqueeze(1)).all(2)
    order_N2K = torch.cat([keep_NK, free_NK], 1).int().argsort(stable=True, dim=1, descending=True)
    return torch.cat([replay_NK, best_NK], 1).gather(1, order_N2K[:, : own_NK.shape[1]])


@frozen
class Router:
    """How an architecture's router turns logits into weights."""

    gates: Callable[[torch.Tensor], torch.Tensor]
    """[N, E] logits to [N, E] gates."""
    weights: Callable[[Any, torch.Tensor], torch.Tensor]
    """The gate module and [N, K] gates of the experts in use, to their weights."""


def _softmax(logits_NE: torch.Tensor) -> torch.Tensor:
    return logits_NE.softmax(-1, dtype=torch.float32)


def _softmax_weights(gate: Any, picked_NK: torch.Tensor) -> torch.Tensor:
    return picked_NK / picked_NK.sum(-1, keepdim=True) if gate.norm_topk_prob else picked_NK


def _sigmoid_weights(gate: Any, picked_NK: torch.Tensor) -> torch.Tensor:
    if gate.norm_topk_prob:
        picked_NK = picked_NK / (picked_NK.sum(-1, keepdim=True) + 1e-20)
    return picked_NK * float(gate.routed_scaling_factor)


SOFTMAX = Router(_softmax, _softmax_weights)
SIGMOID = Router(torch.sigmoid, _sigmoid_weights)
ROUTERS = {
    "qwen3_moe": SOFTMAX,
    "deepseek_v3": SIGMOID,
    "glm4_moe": SIGMOID,
    "qwen3": None,
    "llama": None,
}
"""model_type -> how its router weights the experts it chose; None is a dense model."""
