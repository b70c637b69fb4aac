"""`ops.Ops` on a CPU: operands are held as the fp32 values that their MXFP8 bytes stand for, never as the bytes.

The numbers are those of `reference`, bit for bit (a test compares the two); only the way there differs. Rounding to
E4M3 adds and subtracts a constant of the value's own magnitude, which leaves four significant bits and ties to even,
so no table, no conversion and no division is needed, and a product reads its operands as they are. A `Blocks` holds
the values in `data` and nothing in `scale`.

Values so large that the constant would overflow, infinities and NaN take the long way through `reference`.

Legend: see `ops`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import grouped_mm as grouped_product

from composer_plugin_mxfp8 import formats, reference
from composer_plugin_mxfp8.formats import COLUMNWISE, ROWWISE, Scaling, Shape
from composer_plugin_mxfp8.ops import Blocks, Plan
from composer_plugin_mxfp8.reference import combine, plan, scatter_rows

__all__ = ["combine", "plan", "scatter_rows"]
"""What of `Ops` is the reference's; the rest follows."""

FORWARD_ALIGN = 8
"""Rows that come in eights have the same bytes whatever else their expert computes (RL.md section 5)."""
ALIGN = 32
"""A block of 32x1 does not cross from one expert to the next; `ops.ALIGN` pads more, with zeros, to no effect."""
CHUNK = 1 << 16
"""Elements that are rounded together: what stays in a core's cache from one pass to the next."""
EXPONENT = 0x7F800000
SHIFT = 1.5 * 2.0**20
"""Adding 1.5 x 2^20 x 2^e and taking it away rounds a number of [2^e, 2^(e+1)) to multiples of 2^(e-3), E4M3's."""
LEAST = (6 << 23) | 0x400000
"""From the bits of 2^8 x scale to those of SHIFT x 2^-6 x scale, for what lies below E4M3's normal range."""
LIMIT = 2.0**100
"""Tensors with values from here on are left to `formats`."""


def rounded(x: torch.Tensor, block: Shape, scaling: Scaling = "rceil") -> torch.Tensor:
    """fp32 values of `formats.quantize(x, block, scaling)`, for x [..., M, K]."""
    x_MK = x.reshape(-1, x.shape[-1])
    out_MK = torch.empty_like(x_MK, dtype=torch.float32)
    for x_CK, out_CK in _chunks(x_MK, out_MK):
        _round(x_CK, block, scaling, out_CK)
    return out_MK.view(x.shape)


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same rows of each, as many at a time as fit into CHUNK; a multiple of 32, so that no block is cut."""
    rows = max(1, CHUNK // max(tensor.shape[1] for tensor in tensors) // 32) * 32
    yield from zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)


def _round(x_CK: torch.Tensor, block: Shape, scaling: Scaling, out_CK: torch.Tensor) -> None:
    """`rounded` of one chunk, written to `out_CK`, which is fp32 whatever the chunk is."""
    x_CK = x_CK.float()
    rows, columns = x_CK.shape
    tiles, out = (t.view(rows // block[0], block[0], columns // block[1], block[1]) for t in (x_CK, out_CK))
    amax = tiles.abs().amax((-3, -1), keepdim=True)
    if not float(amax.max()) < LIMIT:
        out_CK.copy_(formats.dequantize(formats.quantize(x_CK, block, scaling)))
        return
    bits = amax.view(torch.int32)  # below, the rule of `formats.scale_bytes`: rceil carries where 1.m is above 1.75
    scale = ((bits + 0x1FFFFF if scaling == "rceil" else bits) & EXPONENT).clamp_(min=8 << 23)
    if scaling == "floor":
        most = (scale | 0x600000).view(torch.float32)
        tiles = torch.minimum(torch.maximum(tiles, -most), most)
    shift = (tiles.view(torch.int32) & EXPONENT).view(torch.float32).mul_(SHIFT)
    torch.maximum(shift, (scale + LEAST).view(torch.float32), out=shift)
    torch.add(tiles, shift, out=out)
    out.sub_(shift)


def quantize_rows(x_MK: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_rows`."""
    return _values(rounded(x_MK, ROWWISE, scaling))


def quantize_weights(w_ENK: torch.Tensor, block: Shape, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_weights`."""
    return _values(rounded(w_ENK.detach(), block, scaling))


def dequantize(x: Blocks, block: Shape, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.dequantize`."""
    return x.data.to(dtype)


def gather_rows(x: Blocks, plan: Plan) -> Blocks:
    """See `Ops.gather_rows`."""
    source_R = plan.source
    data = x.data.index_select(0, source_R.clamp(min=0))
    return _values(data.index_fill_(0, (source_R < 0).nonzero()[:, 0], 0))


def gather_both(x: Blocks, plan: Plan) -> tuple[Blocks, Blocks]:
    """See `Ops.gather_both`."""
    rows = gather_rows(x, plan)
    return rows, _values(rounded(rows.data, COLUMNWISE))


def gather_columns(x: Blocks, plan: Plan) -> Blocks:
    """See `Ops.gather_columns`."""
    return gather_both(x, plan)[1]


def swiglu_quantize(h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.swiglu_quantize`."""
    act_RF = h_R2F.new_empty(len(h_R2F), h_R2F.shape[1] // 2, dtype=torch.float32)
    for h, act in _chunks(h_R2F, act_RF):
        _round(reference.swiglu(h), ROWWISE, scaling, act)
    return _values(act_RF)


def swiglu_backward_weighted(
    dact_RF: torch.Tensor, h_R2F: torch.Tensor, plan: Plan, weights_NK: torch.Tensor, scaling: Scaling = "rceil"
) -> tuple[Blocks, Blocks, Blocks, torch.Tensor]:
    """See `Ops.swiglu_backward_weighted`."""
    weights_R1 = reference.weights_of(plan, weights_NK)
    rows, columns, act = (torch.empty_like(like, dtype=torch.float32) for like in (h_R2F, h_R2F, dact_RF))
    dweights_R1 = torch.empty_like(weights_R1)
    for dact, h, weights, rows_C, columns_C, act_C, dweights in _chunks(
        dact_RF, h_R2F, weights_R1, rows, columns, act, dweights_R1
    ):
        weighted, dh, dots = reference.swiglu_gradients(dact, h, weights)
        dweights.copy_(dots)
        _round(dh, ROWWISE, scaling, rows_C)
        _round(dh, COLUMNWISE, scaling, columns_C)
        _round(weighted, COLUMNWISE, scaling, act_C)
    return _values(rows), _values(columns), _values(act), dweights_R1[plan.rows_NK, 0]


def grouped_mm(a: Blocks, w: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.grouped_mm`."""
    return grouped_product(a.data, w.data.transpose(1, 2), offs=ends_E).to(dtype)


def grouped_dgrad(dy: Blocks, w: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.grouped_dgrad`."""
    return grouped_product(dy.data, w.data, offs=ends_E).to(dtype)


def grouped_wgrad(dy: Blocks, x: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """See `Ops.grouped_wgrad`."""
    return grouped_product(dy.data.T, x.data, offs=ends_E).to(dtype)


def decode_mm(x_MD: torch.Tensor, ids_P: torch.Tensor, w: Blocks, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.decode_mm`."""
    x_PD = x_MD.float().repeat_interleave(len(ids_P) // max(1, len(x_MD)), 0)
    return torch.bmm(w.data[ids_P], x_PD[:, :, None])[..., 0].to(dtype)


def _values(data: torch.Tensor) -> Blocks:
    return Blocks(data, data.new_empty(*data.shape[:-1], 0, dtype=torch.uint8))
