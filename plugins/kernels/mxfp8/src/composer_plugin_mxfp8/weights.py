"""Expert weights in MXFP8, made once for each version of the parameter that they stand for.

A parameter counts its in-place changes (`Tensor._version`): `load_state_dict` moves it, and so do most optimizers.
Fused ones write behind that counter, so a step of any `torch.optim.Optimizer` in the process makes all weights anew.
Writing through `.data` is seen by neither: `forget` is there for who does that. Two are never remembered: parameters in
a process where `fully_shard` is used, since an all-gather writes behind the counter as well, and tensors made in
inference mode, which have none. Those are quantized in each forward and again in the backward, so that no gathered copy
outlives its layer.

Legend: E experts, N outputs, K inputs of a projection.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from composer_plugin_mxfp8.config import MXFP8Config
from composer_plugin_mxfp8.formats import COLUMNWISE, ROWWISE, SQUARE
from composer_plugin_mxfp8.ops import Blocks, Ops


class Weights(NamedTuple):
    """One projection of all experts, as both directions read it."""

    rows: Blocks
    """[E, N, K] with scales [E, N, K / 32]: for the forward, which contracts over K."""
    columns: Blocks
    """The same with scales [E, N / 32, K]: for the gradient of the input, which contracts over N."""


_KNOWN: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class _Steps:
    """Optimizer steps of this process."""

    def __init__(self) -> None:
        self.taken = 0
        register_optimizer_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.taken += 1


_STEPS = _Steps()


def quantized(weight_ENK: torch.Tensor, ops: Ops, config: MXFP8Config) -> Weights:
    """The weights as `ops` takes them."""
    if torch.compiler.is_compiling() or weight_ENK.is_inference() or _sharded():
        return _quantize(weight_ENK, ops, config)
    now = (_STEPS.taken, weight_ENK._version, weight_ENK.data_ptr(), ops, config)
    then, made = _KNOWN.get(weight_ENK, (None, None))  # type: ignore[no-untyped-call]
    if made is None or then != now:
        made = _quantize(weight_ENK, ops, config)
        _KNOWN[weight_ENK] = (now, made)
    found: Weights = made
    return found


def forget(module: torch.nn.Module) -> None:
    """Quantize the parameters of `module` anew at their next use; for who writes through `.data`."""
    for parameter in module.parameters():
        _KNOWN.pop(parameter, None)  # type: ignore[no-untyped-call]


def _quantize(weight_ENK: torch.Tensor, ops: Ops, config: MXFP8Config) -> Weights:
    scaling = config.scaling
    with torch.no_grad():
        if config.weight_block == "1x32":
            rows, columns = (ops.quantize_weights(weight_ENK, block, scaling) for block in (ROWWISE, COLUMNWISE))
            return Weights(rows, columns)
        data, scale = ops.quantize_weights(weight_ENK, SQUARE, scaling)
        wide, tall = (scale.repeat_interleave(32, dim) for dim in (-2, -1))
        return Weights(Blocks(data, wide), Blocks(data, tall))


def _sharded() -> bool:
    """Whether `fully_shard` was applied to anything in this process; it makes a subclass for each module's class."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return bool(fsdp and hasattr(fsdp, "FSDPModule") and fsdp.FSDPModule.__subclasses__())
