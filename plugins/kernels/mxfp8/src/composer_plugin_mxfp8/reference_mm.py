"""The matrix products of `ops.Ops` in plain torch: dequantize to fp32, multiply, round once to the result's type.

Every product of two MXFP8 operands is exact in fp32 up to the order of its sum (OCP MX 6.2 leaves that order open), so
this is what the kernels are measured against. Rows past the last expert's end come out as zeros.

Legend: R padded rows sorted by expert, E experts, N outputs, K inputs of a weight, P pairs of (token, chosen expert).
"""

from __future__ import annotations

import torch

from composer_plugin_mxfp8 import formats
from composer_plugin_mxfp8.formats import COLUMNWISE, MX, ROWWISE
from composer_plugin_mxfp8.ops import Blocks


def grouped_product(a: torch.Tensor, b: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """`torch.nn.functional.grouped_mm` in fp32, as an op, since a compiled graph takes torch's own in bf16 only."""
    out: torch.Tensor = _grouped_product(a, b, ends_E)
    return out


@torch.library.custom_op("composer_mxfp8::grouped_product", mutates_args=())
def _grouped_product(a: torch.Tensor, b: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.grouped_mm(a, b, offs=ends_E)


@_grouped_product.register_fake
def _(a: torch.Tensor, b: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[2]) if b.dim() == 3 else a.new_empty(ends_E.shape[0], a.shape[0], b.shape[1])


def grouped_mm(a: Blocks, w: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.grouped_mm`."""
    return grouped_product(_rows(a), _rows(w).transpose(1, 2), ends_E).to(dtype)


def grouped_dgrad(dy: Blocks, w: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.grouped_dgrad`."""
    return grouped_product(_rows(dy), _columns(w), ends_E).to(dtype)


def grouped_wgrad(dy: Blocks, x: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """See `Ops.grouped_wgrad`."""
    return grouped_product(_columns(dy).T, _columns(x), ends_E).to(dtype)


def decode_mm(x_MD: torch.Tensor, ids_P: torch.Tensor, w: Blocks, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.decode_mm`: the weights of each pair are copied, so this is for few pairs only."""
    w_PND = _rows(Blocks(w.data[ids_P], w.scale[ids_P]))
    x_PD = x_MD.float().repeat_interleave(ids_P.shape[0] // max(1, x_MD.shape[0]), 0)
    return torch.bmm(w_PND, x_PD[:, :, None])[..., 0].to(dtype)


def _rows(x: Blocks) -> torch.Tensor:
    return formats.dequantize(MX(*x, ROWWISE))


def _columns(x: Blocks) -> torch.Tensor:
    return formats.dequantize(MX(*x, COLUMNWISE))
