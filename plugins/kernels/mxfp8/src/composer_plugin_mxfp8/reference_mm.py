"""The matrix products of `ops.Ops` in plain torch: dequantize to fp32, multiply, round once to the result's type.

Every product of two MXFP8 operands is exact in fp32 up to the order of its sum (OCP MX 6.2 leaves that order open), so
this is what the kernels are measured against. Rows past the last expert's end come out as zeros.

Legend: R padded rows sorted by expert, E experts, N outputs, K inputs of a weight, P pairs of (token, chosen expert).
"""

from __future__ import annotations

import torch

from composer_plugin_mxfp8 import formats
from composer_plugin_mxfp8.formats import COLUMNWISE, MX, ROWWISE


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


def grouped_mm(
    a_data_RK: torch.Tensor,
    a_scale: torch.Tensor,
    w_data_ENK: torch.Tensor,
    w_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """See `Ops.grouped_mm`."""
    a_RK, w_ENK = _rows(a_data_RK, a_scale), _rows(w_data_ENK, w_scale)
    return grouped_product(a_RK, w_ENK.transpose(1, 2), ends_E).to(dtype)


def grouped_dgrad(
    dy_data_RN: torch.Tensor,
    dy_scale: torch.Tensor,
    w_data_ENK: torch.Tensor,
    w_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """See `Ops.grouped_dgrad`."""
    dy_RN, w_ENK = _rows(dy_data_RN, dy_scale), _columns(w_data_ENK, w_scale)
    return grouped_product(dy_RN, w_ENK, ends_E).to(dtype)


def grouped_wgrad(
    dy_data_RN: torch.Tensor,
    dy_scale: torch.Tensor,
    x_data_RK: torch.Tensor,
    x_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """See `Ops.grouped_wgrad`."""
    dy_RN, x_RK = _columns(dy_data_RN, dy_scale), _columns(x_data_RK, x_scale)
    return grouped_product(dy_RN.T, x_RK, ends_E).to(dtype)


def decode_mm(
    x_MD: torch.Tensor,
    ids_P: torch.Tensor,
    w_data: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """See `Ops.decode_mm`: the weights of each pair are copied, so this is for few pairs only."""
    w_PND = _rows(w_data[ids_P], w_scale[ids_P])
    x_PD = x_MD.float().repeat_interleave(ids_P.shape[0] // max(1, x_MD.shape[0]), 0)
    return torch.bmm(w_PND, x_PD[:, :, None])[..., 0].to(dtype)


def _rows(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return formats.dequantize(MX(data, scale, ROWWISE))


def _columns(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return formats.dequantize(MX(data, scale, COLUMNWISE))
