"""The kernels of recipe `fp8_1x128_pow2` (see there): E4M3 wgmma, promoted to fp32 with its scales every 128.

Legend: R rows sorted by expert, each expert's from a multiple of 128; a weight is [E, N, K] with a scale for each
128x128; rows have a scale for each 128 of K. A scale is an E8M0 byte.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.kernels.hopper import Tile, described
from composer_plugin_mxfp8.kernels.launch import Pair, launch, only_shapes, op
from composer_plugin_mxfp8.kernels.numerics import bits, decode, encode, inverse, magnitude, native, scale_byte, widen
from composer_plugin_mxfp8.kernels.tiles import INTERPRETED, owner, place, result

TILE = Tile(64, 128, 128, warps=4, stages=3, group=16)
QUANTIZE = (16, 256, 4)


@triton.jit
def quantize_rows_tile(x, data, scale, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, NATIVE: tl.constexpr):
    """One tile in blocks of 1x128, scales as by `rceil`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    exists = (row < rows)[:, None] & (col < cols)[None, :]
    at = row.to(tl.int64)[:, None] * cols + col[None, :]
    blocks = widen(tl.load(x + at, mask=exists, other=0)).reshape(ROWS, COLS // 128, 128)
    byte = scale_byte(tl.max(magnitude(blocks), axis=2), True)
    tl.store(data + at, encode(blocks * inverse(byte)[:, :, None], NATIVE).reshape(ROWS, COLS), mask=exists)
    block = tl.program_id(1) * (COLS // 128) + tl.arange(0, COLS // 128)
    at = row.to(tl.int64)[:, None] * (cols // 128) + block[None, :]
    tl.store(scale + at, byte.to(tl.uint8), mask=(row < rows)[:, None] & (block < cols // 128)[None, :])


@triton.jit
def promoted_rows_by_weights(
    a_desc, a_scale_ptr, w_desc, w_scale_ptr, ends_ptr, y_desc, rows, N, K, E,
    BM: tl.constexpr, EXPERTS: tl.constexpr, GROUP: tl.constexpr, BF16: tl.constexpr,
):  # fmt: skip
    """y[r] = sum over blocks of 128 of 2^(scales) x (a[r] . w[e][n]) of the block; tiles are [BM, 128]."""
    high, across = place(tl.program_id(0), rows // BM, N // 128, GROUP)
    m = high * BM
    expert = owner(ends_ptr, m, E, EXPERTS)
    if expert < E:
        a_row = a_scale_ptr + (m + tl.arange(0, BM)).to(tl.int64) * (K // 128)
        w_row = w_scale_ptr + (expert.to(tl.int64) * (N // 128) + across) * (K // 128)
        acc = tl.zeros((BM, 128), tl.float32)
        a_byte, w_byte = tl.load(a_row), tl.load(w_row)
        for k in range(0, K, 128):
            exponent = tl.minimum(tl.maximum(a_byte.to(tl.int32) + w_byte.to(tl.int32) - 127, 0), 254)
            factor = (exponent << 23).to(tl.float32, bitcast=True)
            block = k // 128 + 1
            a_byte = tl.load(a_row + block, mask=tl.zeros((BM,), tl.int32) + block < K // 128, other=0)
            w_byte = tl.load(w_row + block, mask=block < K // 128, other=0)
            a = a_desc.load([m, k])
            w = w_desc.load([expert, across * 128, k]).reshape(128, 128)
            if INTERPRETED:
                a = decode(a.to(tl.uint8, bitcast=True), False)
                w = decode(w.to(tl.uint8, bitcast=True), False)
            acc += tl.dot(a, w.T) * factor[:, None]
        y_desc.store([m, across * 128], result(acc, BF16))


@op
def quantize_rows_1x128(x_MK: torch.Tensor) -> Pair:
    """E4M3 bits [M, K] and scales [M, K / 128], both uint8."""
    rows, cols = x_MK.shape
    data = x_MK.new_empty((rows, cols), dtype=torch.uint8)
    scale = x_MK.new_empty((rows, cols // 128), dtype=torch.uint8)
    high, wide, warps = QUANTIZE
    launch(
        quantize_rows_tile, (triton.cdiv(rows, high), triton.cdiv(cols, wide)), bits(x_MK.contiguous()), data, scale,
        rows, cols, high, wide, native(x_MK), warps=warps,
    )  # fmt: skip
    return data, scale


@op
def promoted_mm(
    a_data: torch.Tensor,
    a_scale: torch.Tensor,
    w_data: torch.Tensor,
    w_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """[R, N] of `promoted_rows_by_weights`; data as uint8."""
    experts, outputs, depth = w_data.shape
    y_RN = a_data.new_empty((len(a_data), outputs), dtype=dtype)
    if only_shapes() or not y_RN.numel():
        return y_RN
    a, w = (data.contiguous().view(torch.float8_e4m3fn) for data in (a_data, w_data))
    promoted_rows_by_weights[(len(a_data) // TILE.m * (outputs // 128),)](
        described(a, TILE.m, 128), a_scale, described(w, 1, 128, 128), w_scale, ends_E, described(y_RN, TILE.m, 128),
        len(a_data), outputs, depth, experts,
        BM=TILE.m, EXPERTS=triton.next_power_of_2(experts), GROUP=TILE.group, BF16=dtype == torch.bfloat16,
        num_warps=TILE.warps, num_stages=TILE.stages,
    )  # fmt: skip
    return y_RN
