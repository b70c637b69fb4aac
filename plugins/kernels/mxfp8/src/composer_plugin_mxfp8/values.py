"""`ops.Ops` on a CPU: operands are held as the fp32 values that their MXFP8 bytes stand for, never as the bytes.

The numbers are those of `reference`, bit for bit (a test compares the two); only the way there differs. Rounding to
E4M3 adds and subtracts a constant of the value's own magnitude, which leaves four significant bits and ties to even,
so no table, no conversion and no division is needed, and a product reads its operands as they are. A `Blocks` holds
the values in `data` and nothing in `scale`.

Values so large that the constant would overflow, infinities and NaN take the long way through `reference`.

Legend: see `ops`.
"""

from __future__ import annotations

import torch
from torch.nn.functional import grouped_mm as grouped_product

from composer_plugin_mxfp8 import formats, reference
from composer_plugin_mxfp8.formats import COLUMNWISE, LARGEST, ROWWISE, Scaling, Shape, scale_bytes
from composer_plugin_mxfp8.ops import Blocks, Plan
from composer_plugin_mxfp8.reference import combine, plan, scatter_rows

ALIGN = 32
"""A block of 32x1 does not cross from one expert to the next; `ops.ALIGN` pads more, with zeros, to no effect."""
EXPONENT = 0x7F800000
SHIFT = 1.5 * 2.0**20
"""Adding 1.5 x 2^20 x 2^e and taking it away rounds a number of [2^e, 2^(e+1)) to multiples of 2^(e-3), E4M3's."""
LIMIT = 2.0**100
"""Blocks with values from here on are left to `reference`."""

__all__ = [
    "ALIGN",
    "combine",
    "decode_mm",
    "dequantize",
    "gather_rows",
    "grouped_dgrad",
    "grouped_mm",
    "grouped_wgrad",
    "plan",
    "quantize_rows",
    "quantize_weights",
    "requantize_columns",
    "scatter_rows",
    "swiglu_backward_weighted",
    "swiglu_quantize",
]


def rounded(x: torch.Tensor, block: Shape, scaling: Scaling = "rceil") -> torch.Tensor:
    """fp32 values of `formats.quantize(x, block, scaling)`."""
    x = x.float()
    *batch, rows, columns = x.shape
    tiles = x.reshape(*batch, rows // block[0], block[0], columns // block[1], block[1])
    amax = torch.linalg.vector_norm(tiles, torch.inf, (-3, -1), keepdim=True)
    if amax.numel() and not float(amax.max()) < LIMIT:
        return formats.dequantize(formats.quantize(x, block, scaling))
    byte = scale_bytes(amax, scaling).to(torch.int32)
    if scaling == "floor":
        most = LARGEST * formats.decode_e8m0(byte.to(torch.uint8))
        tiles = torch.minimum(torch.maximum(tiles, -most), most)
    smallest = ((byte + 14) << 23 | 0x400000).view(torch.float32)  # SHIFT at E4M3's lowest exponent, -6
    shift = (tiles.view(torch.int32) & EXPONENT).view(torch.float32).mul_(SHIFT)
    shift = torch.maximum(shift, smallest, out=shift)
    values: torch.Tensor = (tiles + shift).sub_(shift)
    return values.view(x.shape)


def quantize_rows(x_MK: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_rows`."""
    return _values(rounded(x_MK, ROWWISE, scaling))


def quantize_weights(w_ENK: torch.Tensor, block: Shape, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_weights`."""
    return _values(rounded(w_ENK.detach(), block, scaling))


def dequantize(
    data: torch.Tensor, scale: torch.Tensor, block: Shape, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """See `Ops.dequantize`."""
    return data.to(dtype)


def gather_rows(x: Blocks, plan: Plan) -> Blocks:
    """See `Ops.gather_rows`."""
    return _values(reference.gather(x.data, plan))


def requantize_columns(data_MK: torch.Tensor, scale: torch.Tensor) -> Blocks:
    """See `Ops.requantize_columns`."""
    return _values(rounded(data_MK, COLUMNWISE))


def swiglu_quantize(h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.swiglu_quantize`."""
    return quantize_rows(reference.swiglu(h_R2F), scaling)


def swiglu_backward_weighted(
    dact_RF: torch.Tensor, h_R2F: torch.Tensor, plan: Plan, weights_NK: torch.Tensor, scaling: Scaling = "rceil"
) -> tuple[Blocks, Blocks, Blocks, torch.Tensor]:
    """See `Ops.swiglu_backward_weighted`."""
    act_RF, dh_R2F, dweights_NK = reference.swiglu_gradients(dact_RF, h_R2F, plan, weights_NK)
    rows, columns = rounded(dh_R2F, ROWWISE, scaling), rounded(dh_R2F, COLUMNWISE, scaling)
    return _values(rows), _values(columns), _values(rounded(act_RF, COLUMNWISE, scaling)), dweights_NK


def grouped_mm(
    a_data_RK: torch.Tensor,
    a_scale: torch.Tensor,
    w_data_ENK: torch.Tensor,
    w_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """See `Ops.grouped_mm`."""
    return grouped_product(a_data_RK, w_data_ENK.transpose(1, 2), offs=ends_E).to(dtype)


def grouped_dgrad(
    dy_data_RN: torch.Tensor,
    dy_scale: torch.Tensor,
    w_data_ENK: torch.Tensor,
    w_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """See `Ops.grouped_dgrad`."""
    return grouped_product(dy_data_RN, w_data_ENK, offs=ends_E).to(dtype)


def grouped_wgrad(
    dy_data_RN: torch.Tensor,
    dy_scale: torch.Tensor,
    x_data_RK: torch.Tensor,
    x_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """See `Ops.grouped_wgrad`."""
    return grouped_product(dy_data_RN.T, x_data_RK, offs=ends_E).to(dtype)


def decode_mm(
    x_MD: torch.Tensor,
    ids_P: torch.Tensor,
    w_data: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """See `Ops.decode_mm`."""
    x_PD = x_MD.float().repeat_interleave(len(ids_P) // max(1, len(x_MD)), 0)
    return torch.bmm(w_data[ids_P], x_PD[:, :, None])[..., 0].to(dtype)


def _values(data: torch.Tensor) -> Blocks:
    return Blocks(data, data.new_empty(*data.shape[:-1], 0, dtype=torch.uint8))
