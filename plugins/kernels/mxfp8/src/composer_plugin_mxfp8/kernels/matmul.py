"""The matrix products of `ops.Ops`: which kernel computes them on the device at hand.

Blackwell multiplies MXFP8 as it is. A Hopper needs bf16 (see `hopper`), so what is measured to be fastest there:

    many rows an expert    both operands are dequantized, then torch's grouped product, which is near the peak
    few rows               rows are dequantized, weights stay E4M3 until they are in registers (the forward only)
    decode                 weights stay E4M3, rows are bf16 already

torch's product gives bf16; where a result is wanted in fp32, ours computes it. Scratch tensors live for one product and
take 2 bytes an element. Legend: see `ops`.
"""

from __future__ import annotations

import torch
from torch.nn.functional import grouped_mm as grouped_product

from composer_plugin_mxfp8.formats import COLUMNWISE, ROWWISE
from composer_plugin_mxfp8.kernels import blackwell, decode, hopper
from composer_plugin_mxfp8.kernels.dequantizing import dequantize
from composer_plugin_mxfp8.kernels.hopper import Tile
from composer_plugin_mxfp8.kernels.launch import only_shapes, op
from composer_plugin_mxfp8.kernels.numerics import bits
from composer_plugin_mxfp8.ops import ALIGN, Blocks

FEW_ROWS = 448
"""Rows an expert on average, below which reading the weights once as E4M3 beats dequantizing them first."""
BLACKWELL = 10
"""Major compute capability of the GPUs with block-scaled products."""


def grouped_mm(a: Blocks, w: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.grouped_mm`."""
    _check_rows(a.data)
    y_RN: torch.Tensor = _grouped_mm(bits(a.data), a.scale, bits(w.data), w.scale, ends_E, dtype)
    return y_RN


def grouped_dgrad(dy: Blocks, w: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.grouped_dgrad`."""
    _check_rows(dy.data)
    dx_RK: torch.Tensor = _grouped_dgrad(bits(dy.data), dy.scale, bits(w.data), w.scale, ends_E, dtype)
    return dx_RK


def grouped_wgrad(dy: Blocks, x: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """See `Ops.grouped_wgrad`."""
    _check_rows(dy.data)
    dw_ENK: torch.Tensor = _grouped_wgrad(bits(dy.data), dy.scale, bits(x.data), x.scale, ends_E, dtype)
    return dw_ENK


def decode_mm(x_MD: torch.Tensor, ids_P: torch.Tensor, w: Blocks, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.decode_mm`."""
    y_PN: torch.Tensor = _decode_mm(x_MD, ids_P, bits(w.data), w.scale, dtype)
    return y_PN


def decode_tile(pairs: int) -> Tile:
    """For a token or two, more programs; else fewer of them, which look for their pairs less often."""
    return Tile(64, 16, 128, warps=4, stages=4) if pairs <= 16 else Tile(128, 16, 64, warps=4, stages=5)


@op
def _grouped_mm(
    a_data: torch.Tensor,
    a_scale: torch.Tensor,
    w_data: torch.Tensor,
    w_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    if only_shapes() or not a_data.shape[0]:
        return a_data.new_empty((a_data.shape[0], w_data.shape[1]), dtype=dtype)
    a_data, w_data = _e4m3(a_data), _e4m3(w_data)
    if _scaled_products(a_data):
        return blackwell.grouped(a_data, a_scale, w_data, w_scale, ends_E, True, dtype)
    if a_data.shape[0] < FEW_ROWS * w_data.shape[0]:
        a = dequantize(Blocks(a_data, a_scale), ROWWISE)
        return hopper.grouped_swapped(a, w_data, w_scale, ends_E, dtype)
    a, w = dequantize(Blocks(a_data, a_scale), ROWWISE), dequantize(Blocks(w_data, w_scale), ROWWISE)
    if _torch_computes(a, dtype):
        return grouped_product(a, w.transpose(1, 2), offs=ends_E)
    return hopper.grouped(a, w, ends_E, True, dtype)


@op
def _grouped_dgrad(
    dy_data: torch.Tensor,
    dy_scale: torch.Tensor,
    w_data: torch.Tensor,
    w_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    if only_shapes() or not dy_data.shape[0]:
        return dy_data.new_empty((dy_data.shape[0], w_data.shape[2]), dtype=dtype)
    dy_data, w_data = _e4m3(dy_data), _e4m3(w_data)
    if _scaled_products(dy_data):
        return blackwell.grouped(dy_data, dy_scale, w_data, w_scale, ends_E, False, dtype)
    dy, w = dequantize(Blocks(dy_data, dy_scale), ROWWISE), dequantize(Blocks(w_data, w_scale), COLUMNWISE)
    if _torch_computes(dy, dtype):
        return grouped_product(dy, w, offs=ends_E)
    return hopper.grouped(dy, w, ends_E, False, dtype)


@op
def _grouped_wgrad(
    dy_data: torch.Tensor,
    dy_scale: torch.Tensor,
    x_data: torch.Tensor,
    x_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    shape = (ends_E.shape[0], dy_data.shape[1], x_data.shape[1])
    if only_shapes():
        return dy_data.new_empty(shape, dtype=dtype)
    if not dy_data.shape[0]:
        return dy_data.new_zeros(shape, dtype=dtype)
    dy_data, x_data = _e4m3(dy_data), _e4m3(x_data)
    if _scaled_products(dy_data):
        return blackwell.wgrad(dy_data, dy_scale, x_data, x_scale, ends_E, dtype)
    dy, x = dequantize(Blocks(dy_data, dy_scale), COLUMNWISE), dequantize(Blocks(x_data, x_scale), COLUMNWISE)
    if _torch_computes(dy, dtype):
        return grouped_product(dy.T, x, offs=ends_E)
    return hopper.wgrad(dy, x, ends_E, dtype)


@op
def _decode_mm(
    x_MD: torch.Tensor, ids_P: torch.Tensor, w_data: torch.Tensor, w_scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    if only_shapes() or not ids_P.shape[0]:
        return x_MD.new_empty((ids_P.shape[0], w_data.shape[1]), dtype=dtype)
    x_MD, w_data = x_MD.to(torch.bfloat16), _e4m3(w_data)
    return decode.decode(x_MD, ids_P, w_data, w_scale, dtype, decode_tile(ids_P.shape[0]))


def _e4m3(data: torch.Tensor) -> torch.Tensor:
    """Operands pass the schema as uint8, which torch's checks of an op can copy and compare."""
    return data.contiguous().view(torch.float8_e4m3fn)


def _torch_computes(x: torch.Tensor, dtype: torch.dtype) -> bool:
    return x.is_cuda and dtype == torch.bfloat16


def _scaled_products(x: torch.Tensor) -> bool:
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == BLACKWELL


def _check_rows(data: torch.Tensor) -> None:
    if data.shape[0] % ALIGN:
        raise ValueError(
            f"rows of grouped products come in multiples of {ALIGN} and these are {data.shape[0]}; see `plan`"
        )
