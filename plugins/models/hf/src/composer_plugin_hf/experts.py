"""Kernels of op "experts" in plain torch, and their installation into transformers' experts interface.

Legend: N tokens, D model width, F expert width, E experts, K experts per token, P = N x K pairs, C rows per expert.

`grouped` sorts the pairs by expert and runs one grouped product per projection: the default; a handful of pairs on a
CPU copies the weights it needs instead, which is three times as fast for one token. `padded` lays the pairs out as E
equal blocks whose rows are a multiple of 8 and runs batched products: a row's value then depends on that row alone, bit
for bit (RL.md section 5), which `grouped` does not promise. `dense` computes every expert for every token; it is the
reference the others are tested against. All are differentiable in everything but the ids.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import grouped_mm, silu
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, _default_apply_gate

from composer_core.errors import ConfigError
from composer_core.tensors import Experts
from composer_plugin_hf.cache import round_up

NAME = "composer"
COPIED_WEIGHTS = 1 << 20
"""Most weights of one projection that are copied for a handful of pairs; more would only move memory."""


def dense(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
) -> torch.Tensor:
    """Every expert on every token, weighted by 0 where it was not chosen."""
    share_NE = x_ND.new_zeros(x_ND.shape[0], down_EDF.shape[0]).scatter_add(1, ids_NK, weights_NK.to(x_ND.dtype))
    gate_NEF, up_NEF = torch.einsum("nd,efd->nef", x_ND, gate_up_E2FD).chunk(2, dim=-1)
    out_NED = torch.einsum("nef,edf->ned", silu(gate_NEF) * up_NEF, down_EDF)
    return torch.einsum("ned,ne->nd", out_NED, share_NE)


def grouped(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
) -> torch.Tensor:
    """Pairs sorted by expert; one grouped product per projection."""
    if not x_ND.shape[0]:
        return x_ND
    if _few(ids_NK, gate_up_E2FD):
        return _copied(x_ND, ids_NK, weights_NK, gate_up_E2FD, down_EDF)
    order_P, counts_E = _by_expert(ids_NK, down_EDF.shape[0])
    ends_E = counts_E.cumsum(0).to(torch.int32)
    hidden_P2F = grouped_mm(x_ND[order_P // ids_NK.shape[1]], gate_up_E2FD.transpose(1, 2), offs=ends_E)
    gate_PF, up_PF = hidden_P2F.chunk(2, dim=-1)
    out_PD = grouped_mm(silu(gate_PF) * up_PF, down_EDF.transpose(1, 2), offs=ends_E)
    return _combine(out_PD, _inverse(order_P), weights_NK)


def _few(ids_NK: torch.Tensor, gate_up_E2FD: torch.Tensor) -> bool:
    """Whether copying each pair's weights costs less than a grouped product, which visits every expert."""
    pairs = ids_NK.numel()
    small = pairs * gate_up_E2FD[0].numel() <= COPIED_WEIGHTS
    return small and 4 * pairs <= len(gate_up_E2FD) and ids_NK.device.type == "cpu"


def _copied(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
) -> torch.Tensor:
    """One product for each pair, with weights gathered."""
    tokens, chosen = ids_NK.shape
    flat_P = ids_NK.reshape(-1)
    x_P1D = x_ND.repeat_interleave(chosen, 0).unsqueeze(1)
    gate, up = torch.bmm(x_P1D, gate_up_E2FD[flat_P].transpose(1, 2)).chunk(2, dim=-1)
    out_P1D = torch.bmm(silu(gate) * up, down_EDF[flat_P].transpose(1, 2))
    return (out_P1D.view(tokens, chosen, -1) * weights_NK.to(out_P1D.dtype).unsqueeze(-1)).sum(1)


def padded(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
) -> torch.Tensor:
    """Pairs in E blocks of C rows, C a multiple of 8; batched products."""
    if not x_ND.shape[0]:
        return x_ND
    experts, width = down_EDF.shape[0], x_ND.shape[1]
    order_P, counts_E = _by_expert(ids_NK, experts)
    rows = round_up(int(counts_E.max()), 8)
    expert_P = ids_NK.reshape(-1)[order_P]
    before_E = counts_E.cumsum(0) - counts_E
    place_P = expert_P * rows + torch.arange(order_P.numel(), device=x_ND.device) - before_E[expert_P]
    blocks = x_ND.new_zeros(experts * rows, width).index_copy(0, place_P, x_ND[order_P // ids_NK.shape[1]])
    gate, up = torch.bmm(blocks.view(experts, rows, width), gate_up_E2FD.transpose(1, 2)).chunk(2, dim=-1)
    out = torch.bmm(silu(gate) * up, down_EDF.transpose(1, 2)).view(experts * rows, width)
    return _combine(out, place_P[_inverse(order_P)], weights_NK)


def _by_expert(ids_NK: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A stable order of the pairs by expert, and how many each expert has."""
    flat_P = ids_NK.reshape(-1)
    return flat_P.argsort(stable=True), torch.bincount(flat_P, minlength=experts)


def _inverse(order_P: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(order_P).index_copy(0, order_P, torch.arange(order_P.numel(), device=order_P.device))


def _combine(out_PD: torch.Tensor, rows_P: torch.Tensor, weights_NK: torch.Tensor) -> torch.Tensor:
    """Bring rows back to token order and add each token's K weighted outputs, always in the same order."""
    out_NKD = out_PD[rows_P].view(*weights_NK.shape, out_PD.shape[1])
    return (out_NKD * weights_NK.to(out_PD.dtype).unsqueeze(-1)).sum(1)


def build_grouped(config: object, build: object) -> Experts:
    """Factory of kernel `hf/sorted-experts`."""
    return grouped


def build_padded(config: object, build: object) -> Experts:
    """Factory of kernel `hf/padded-experts`."""
    return padded


def build_dense(config: object, build: object) -> Experts:
    """Reference of both."""
    return dense


def misfit(module: Any) -> str | None:
    """Why the weights or the gate of a transformers experts module are not those of the op, or None.

    The flags are those that `transformers.integrations.moe.use_experts_implementation` sets.
    """
    found = {
        "they have biases": module.has_bias,
        "they have no gate": not module.has_gate,
        "their weights lie transposed, [E, in, out]": module.is_transposed,
        "gate and up are interleaved": not module.is_concatenated,
        "a norm stands behind each": getattr(module, "has_post_expert_norm", False),
        "their gate is a function of their own": type(module)._apply_gate is not _default_apply_gate,
    }
    return "; ".join(reason for reason, is_so in found.items() if is_so) or None


def install(module: Any, kernel: Experts) -> None:
    """Let one transformers experts module compute with `kernel`.

    Raises:
        ConfigError: its layout is not that of the op.
    """
    if reason := misfit(module):
        raise ConfigError(
            f"the experts of {type(module).__name__} are not those of the op 'experts': {reason}",
            who="plugin hf",
            expected="gate_up_proj [E, 2F, D] with the gates first, down_proj [E, D, F], silu(gate) * up, no biases",
            fix="choose a model of such experts (Qwen3-MoE, DeepSeek-V3, Kimi-K2, GLM-4.5)",
        )
    module.composer_kernel = kernel


def _dispatch(module: Any, x_ND: torch.Tensor, ids_NK: torch.Tensor, weights_NK: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = module.composer_kernel(x_ND, ids_NK, weights_NK, module.gate_up_proj, module.down_proj)
    return out


ALL_EXPERTS_FUNCTIONS.register(NAME, _dispatch)
