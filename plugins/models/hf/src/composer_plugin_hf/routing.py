"""Recording and replaying the experts that routers choose, by hooks on a model's gate modules.

Legend: N = B x T tokens, L MoE layers, K experts per token, E experts.

A replayed id gets the gate value that the router computes for it now, renormalized as the model does, so the gradient
still reaches the router (RL.md section 4). The hooks know two routers: softmax before the choice (Qwen3-MoE), and
sigmoid with a correction bias that takes part in the choice only (DeepSeek-V3, GLM-4.5).
"""

from __future__ import annotations

from typing import Any

import torch

from composer_core.errors import ConfigError
from composer_core.tensors import RouteShape


class RouteTape:
    """What the gates of one forward pass are told, and what they did."""

    def __init__(self, gates: list[Any], model_type: str) -> None:
        self.gates = gates
        self.replay_NLK: torch.Tensor | None = None
        self.record: list[torch.Tensor] | None = None
        for layer, gate in enumerate(gates):
            gate.register_forward_hook(_hook(self, layer, ROUTERS[model_type]))

    def shape(self) -> RouteShape | None:
        if not self.gates:
            return None
        return RouteShape(len(self.gates), int(self.gates[0].top_k), int(self.gates[0].num_experts))

    def begin(self, replay_BTLK: torch.Tensor | None, want: bool) -> None:
        if replay_BTLK is not None and not self.gates:
            raise ConfigError("a dense model has no routes to replay", found=f"shape {list(replay_BTLK.shape)}")
        self.replay_NLK = None if replay_BTLK is None else replay_BTLK.flatten(0, 1).long()
        self.record = [] if want and self.gates else None

    def end(self, rows: int, tokens: int) -> torch.Tensor | None:
        """The [B, T, L, K] ids that were used; also forgets the pass."""
        record, self.record, self.replay_NLK = self.record, None, None
        shape = self.shape()
        if record is None or shape is None:
            return None
        return torch.stack(record, 1).to(shape.dtype).view(rows, tokens, shape.layers, shape.top_k)


def _hook(tape: RouteTape, layer: int, weights: Any) -> Any:
    def hook(gate: Any, _args: Any, output: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        logits_NE, chosen_NK, ids_NK = output
        if tape.replay_NLK is not None:
            ids_NK = tape.replay_NLK[:, layer]
            chosen_NK = weights(gate, logits_NE, ids_NK).to(chosen_NK.dtype)
            output = (logits_NE, chosen_NK, ids_NK)
        if tape.record is not None:
            tape.record.append(ids_NK)
        return output

    return hook


def _softmax_weights(gate: Any, logits_NE: torch.Tensor, ids_NK: torch.Tensor) -> torch.Tensor:
    picked_NK = logits_NE.softmax(-1, dtype=torch.float32).gather(1, ids_NK)
    return picked_NK / picked_NK.sum(-1, keepdim=True) if gate.norm_topk_prob else picked_NK


def _sigmoid_weights(gate: Any, logits_NE: torch.Tensor, ids_NK: torch.Tensor) -> torch.Tensor:
    picked_NK = logits_NE.sigmoid().gather(1, ids_NK)
    if gate.norm_topk_prob:
        picked_NK = picked_NK / (picked_NK.sum(-1, keepdim=True) + 1e-20)
    return picked_NK * float(gate.routed_scaling_factor)


ROUTERS = {
    "qwen3_moe": _softmax_weights,
    "deepseek_v3": _sigmoid_weights,
    "glm4_moe": _sigmoid_weights,
    "qwen3": None,
    "llama": None,
}
"""model_type -> how its router weights the experts it chose; None is a dense model."""
