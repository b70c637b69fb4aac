"""`quantize_`: the experts of a model that exists compute in MXFP8, whatever made it and without the rest of Composer.

Parameters stay as they are, under their names and in their precision: optimizers, `fully_shard`, `state_dict` and
`save_pretrained` see no difference, and a checkpoint opens anywhere. Only the `forward` of each experts module changes.

A module of experts is one that holds `gate_up_proj` and `down_proj`, as transformers' do (Qwen3-MoE, DeepSeek-V3,
Kimi-K2, GLM-4.5). What is laid out or computed in another way is refused with every reason, never converted halfway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

from composer_plugin_mxfp8 import support
from composer_plugin_mxfp8.config import MXFP8Config
from composer_plugin_mxfp8.experts import DEFAULT, mxfp8_experts
from composer_plugin_mxfp8.formats import BLOCK

Filter = Callable[[nn.Module, str], bool]


def quantize_(model: nn.Module, config: MXFP8Config = DEFAULT, filter_fn: Filter | None = None) -> nn.Module:
    """Let the experts of `model` compute in MXFP8, in place; returns the model.

    `filter_fn(module, name)` says which modules of experts; all of them where it is None.

    Raises:
        ValueError: none is chosen, or one that is chosen cannot; then nothing is changed.
        RuntimeError: `config.implementation` is "triton" and cannot run on this machine.
    """
    if config.implementation == "triton" and (reason := support.why_not_here()):
        raise RuntimeError(f'implementation = "triton" cannot run here: {reason}; choose "auto" or "reference"')
    chosen = {name: module for name, module in experts_of(model) if filter_fn is None or filter_fn(module, name)}
    if not chosen:
        raise ValueError(
            f"no module of experts to quantize in {type(model).__name__}: none has gate_up_proj and down_proj"
        )
    if refused := {name: reason for name, module in chosen.items() if (reason := misfit(module))}:
        lines = "".join(f"\n  {name}: {reason}" for name, reason in refused.items())
        raise ValueError(f"experts that cannot compute in MXFP8; leave them out by filter_fn:{lines}")
    for module in chosen.values():
        module.mxfp8 = config
        module.forward = MethodType(_forward, module)
    return model


def experts_of(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every module that holds the weights of experts, with its name."""
    for name, module in model.named_modules():
        if all(isinstance(getattr(module, part, None), nn.Parameter) for part in ("gate_up_proj", "down_proj")):
            yield name, module


def misfit(module: Any) -> str | None:
    """Why the experts of `module` cannot compute in MXFP8, every reason of it, or None."""
    found = [*_misfits(module, module.gate_up_proj, module.down_proj)]
    return "; ".join(found) or None


def _misfits(module: Any, gate_up: torch.Tensor, down: torch.Tensor) -> Iterator[str]:
    if getattr(module, "is_transposed", False):
        yield "weights lie transposed, [E, in, out]"
    elif gate_up.dim() != 3 or gate_up.shape != (len(down), 2 * down.shape[-1], down.shape[1]):
        yield f"weights of {[*gate_up.shape]} and {[*down.shape]} are not [E, 2F, D] and [E, D, F]"
    elif odd := [width for width in down.shape[1:] if width % BLOCK]:
        yield f"a width of {' and '.join(map(str, odd))} is no multiple of {BLOCK}"
    if any(name.endswith("bias") for name, _ in module.named_parameters(recurse=False)):
        yield "they have biases"
    if getattr(module, "has_post_expert_norm", False):
        yield "a norm stands behind each"
    if getattr(module, "_is_expert_parallel", False):
        yield "they are spread over ranks"
    if not _gates_by_silu(module):
        yield "their gate is not silu(first half) * second half"


def _gates_by_silu(module: Any) -> bool:
    """Asked of the module itself, on numbers of both signs."""
    h_R2F = torch.linspace(-9, 9, 64).reshape(1, 64)
    gate_RF, up_RF = h_R2F.chunk(2, -1)
    own = getattr(module, "_apply_gate", None)
    if own is None and not hasattr(module, "act_fn"):
        return False
    found = own(h_R2F) if own else module.act_fn(gate_RF) * up_RF
    return torch.allclose(found, silu(gate_RF) * up_RF, atol=1e-5)


def _forward(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """What transformers' experts modules are called with: [N, D], ids and weights [N, K]; returns [N, D]."""
    return mxfp8_experts(hidden_states, top_k_index, top_k_weights, self.gate_up_proj, self.down_proj, self.mxfp8)
