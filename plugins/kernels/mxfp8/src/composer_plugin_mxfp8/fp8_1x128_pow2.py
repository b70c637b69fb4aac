"""Recipe `fp8_1x128_pow2`: block-scaled FP8 that Hopper's tensor cores multiply as it is. It is not MXFP8.

Rows have one scale for each 128 elements and weights one for each 128x128, all powers of two (DeepSeek-V3, arXiv
2412.19437, 3.3, whose scales are any fp32). So sums of E4M3 products stay in the tensor cores for 128 steps, and are
scaled and added in fp32 once, which leaves much of FP8's double rate; a scale for each 32 would leave none. What it
costs: fourfold coarser scales, sums of 128 in the limited precision of Hopper's FP8 accumulator, and checkpoints that
are no MXFP8. Nothing picks it but its name.

`grouped_linear` is the layer's product with its gradients: the output and the input's gradient in FP8, the weight's
gradient of unquantized operands. Both dimensions of a weight must be multiples of 128.

Legend: R padded rows sorted by expert (`ops.Plan`), E experts, N outputs, K inputs.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from composer_plugin_mxfp8 import formats, support
from composer_plugin_mxfp8.formats import MX
from composer_plugin_mxfp8.ops import Blocks
from composer_plugin_mxfp8.reference_mm import grouped_product

SIDE = 128
"""Elements of a row that share a scale, and each side of a weight's block."""


def grouped_linear(x_RK: torch.Tensor, w_ENK: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """y[r] = w[e] @ x[r] for the rows of each expert, in the dtype of x; rows past the last end are undefined.

    Raises:
        ValueError: a width is not a multiple of 128.
    """
    y_RN: torch.Tensor = _GroupedLinear.apply(x_RK, w_ENK, ends_E)  # type: ignore[no-untyped-call]
    return y_RN


def quantize_rows(x_MK: torch.Tensor) -> Blocks:
    """Blocks of 1x128; scales by the rule `rceil`."""
    if (fast := kernels(x_MK)) and not x_MK.shape[1] % SIDE:
        data, scale = fast.quantize_rows_1x128(x_MK)
        return Blocks(data.view(torch.float8_e4m3fn), scale)
    found = formats.quantize(x_MK, (1, SIDE))
    return Blocks(found.data, found.scale)


def quantize_weights(w_ENK: torch.Tensor) -> Blocks:
    """Blocks of 128x128."""
    found = formats.quantize(w_ENK, (SIDE, SIDE))
    return Blocks(found.data, found.scale)


def transposed(weights: Blocks) -> Blocks:
    """[E, K, N] of [E, N, K], laid out anew: Hopper's FP8 products want the contraction innermost in both operands."""
    data, scale = (part.view(torch.uint8).transpose(1, 2).contiguous() for part in weights)
    return Blocks(data.view(torch.float8_e4m3fn), scale)


def product(a: Blocks, w: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """[R, N]: rows [R, K] times weights [E, N, K]."""
    if fast := kernels(a.data):
        y_RN: torch.Tensor = fast.promoted_mm(
            a.data.view(torch.uint8), a.scale, w.data.view(torch.uint8), w.scale, ends_E, dtype
        )
        return y_RN
    a_RK, w_ENK = (formats.dequantize(MX(*part, block)) for part, block in ((a, (1, SIDE)), (w, (SIDE, SIDE))))
    return grouped_product(a_RK, w_ENK.transpose(1, 2), ends_E).to(dtype)


def kernels(x: torch.Tensor) -> ModuleType | None:
    """The Triton kernels where they run on the tensor's device and Triton was not told to interpret them."""
    return None if support.interpreting() else _kernels(x.device)


@cache
def _kernels(device: torch.device) -> ModuleType | None:
    if support.why_not(device):
        return None
    return import_module("composer_plugin_mxfp8.kernels.promoted")


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RK: torch.Tensor, w_ENK: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
        w = quantize_weights(w_ENK)
        ctx.save_for_backward(x_RK, *w, ends_E)
        ctx.dtype = w_ENK.dtype
        return product(quantize_rows(x_RK), w, ends_E, x_RK.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_RN: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_RK, w_data, w_scale, ends_E = ctx.saved_tensors
        dx_RK = product(quantize_rows(dy_RN), transposed(Blocks(w_data, w_scale)), ends_E, x_RK.dtype)
        dw_ENK = grouped_product(dy_RN.to(x_RK.dtype).contiguous().T, x_RK, ends_E)
        return dx_RK, dw_ENK.to(ctx.dtype), None
