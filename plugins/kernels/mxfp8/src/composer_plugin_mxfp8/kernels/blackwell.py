"""Grouped products on Blackwell (sm_100): `tl.dot_scaled`, which becomes tcgen05.mma with block scales.

Both operands stay E4M3 all the way and the tensor cores apply the scales. Compiled and checked for that instruction,
and computed under the interpreter; no time is given for it. On other GPUs Triton emulates it, slowly, with the same
values.

Legend: as in `hopper`. Scales are in the plain layout, read by strides: STEP apart from block to block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.kernels.hopper import Tile, described
from composer_plugin_mxfp8.kernels.tiles import owner, place, result

TILE = Tile(128, 128, 128, warps=4, stages=4)


@triton.jit
def block_scales(ptr, first, count, stride, block, blocks, step, SIDE: tl.constexpr, BLOCKS: tl.constexpr):
    """uint8 [SIDE, BLOCKS] of rows (or columns) from `first` on, and of blocks from `block` on; 0 outside."""
    side = first + tl.arange(0, SIDE)
    along = block + tl.arange(0, BLOCKS)
    at = side.to(tl.int64)[:, None] * stride + along.to(tl.int64)[None, :] * step
    return tl.load(ptr + at, mask=(side < count)[:, None] & (along < blocks)[None, :], other=0)


@triton.jit
def scaled_rows_by_weights(
    a_desc, a_scale_ptr, w_desc, w_scale_ptr, ends_ptr, y_desc, rows, N, K, E, w_stride, w_step,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EXPERTS: tl.constexpr, GROUP: tl.constexpr,
    BF16: tl.constexpr, OUTPUTS_FIRST: tl.constexpr,
):  # fmt: skip
    """y[r] = sum over k of a[r, k] w[e][n, k], or w[e][k, n] unless OUTPUTS_FIRST; both scaled along k."""
    high, across = place(tl.program_id(0), rows // BM, tl.cdiv(N, BN), GROUP)
    m = high * BM
    n = across * BN
    expert = owner(ends_ptr, m, E, EXPERTS)
    if expert < E:
        blocks = K // 32
        w_scale_ptr += expert.to(tl.int64) * N * blocks
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            a_scale = block_scales(a_scale_ptr, m, rows, blocks, k // 32, blocks, 1, BM, BK // 32)
            w_scale = block_scales(w_scale_ptr, n, N, w_stride, k // 32, blocks, w_step, BN, BK // 32)
            if OUTPUTS_FIRST:
                w = w_desc.load([expert, n, k]).reshape(BN, BK).T
            else:
                w = w_desc.load([expert, k, n]).reshape(BK, BN)
            acc = tl.dot_scaled(a_desc.load([m, k]), a_scale, "e4m3", w, w_scale, "e4m3", acc)
        y_desc.store([m, n], result(acc, BF16))


@triton.jit
def scaled_rows_by_rows(
    dy_desc, dy_scale_ptr, x_desc, x_scale_ptr, ends_ptr, dw_desc, rows, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, BF16: tl.constexpr,
):  # fmt: skip
    """dw[e][n, k] = sum over the expert's rows of dy[r, n] x[r, k], both scaled along r."""
    expert = tl.program_id(1)
    first = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
    last = tl.load(ends_ptr + expert)
    high, across = place(tl.program_id(0), tl.cdiv(N, BM), tl.cdiv(K, BN), GROUP)
    n = high * BM
    k = across * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for r in range(first, last, BK):
        dy_scale = block_scales(dy_scale_ptr, n, N, 1, r // 32, rows // 32, N, BM, BK // 32)
        x_scale = block_scales(x_scale_ptr, k, K, 1, r // 32, rows // 32, K, BN, BK // 32)
        dy = dy_desc.load([r, n]).T
        acc = tl.dot_scaled(dy, dy_scale, "e4m3", x_desc.load([r, k]), x_scale, "e4m3", acc)
    dw_desc.store([expert, n, k], result(acc, BF16).reshape(1, BM, BN))


def grouped(
    a_data: torch.Tensor,
    a_scale: torch.Tensor,
    w_data: torch.Tensor,
    w_scale: torch.Tensor,
    ends_E: torch.Tensor,
    outputs_first: bool,
    dtype: torch.dtype,
    tile: Tile = TILE,
) -> torch.Tensor:
    """[R, N] of `scaled_rows_by_weights`; w is [E, N, K] scaled 1x32 if outputs_first, else [E, K, N] scaled 32x1."""
    experts, outputs, depth = w_data.shape if outputs_first else (w_data.shape[0], w_data.shape[2], w_data.shape[1])
    y_RN = a_data.new_empty(len(a_data), outputs, dtype=dtype)
    scaled_rows_by_weights[(len(a_data) // tile.m * triton.cdiv(outputs, tile.n),)](
        described(a_data, tile.m, tile.k), a_scale,
        described(w_data, 1, *((tile.n, tile.k) if outputs_first else (tile.k, tile.n))), w_scale,
        ends_E, described(y_RN, tile.m, tile.n), len(a_data), outputs, depth, experts,
        *((depth // 32, 1) if outputs_first else (1, outputs)),
        BM=tile.m, BN=tile.n, BK=tile.k, EXPERTS=triton.next_power_of_2(experts), GROUP=tile.group,
        BF16=dtype == torch.bfloat16, OUTPUTS_FIRST=outputs_first, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y_RN


def wgrad(
    dy_data: torch.Tensor,
    dy_scale: torch.Tensor,
    x_data: torch.Tensor,
    x_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype,
    tile: Tile = TILE,
) -> torch.Tensor:
    """[E, N, K] of `scaled_rows_by_rows`."""
    outputs, inputs = dy_data.shape[1], x_data.shape[1]
    dw_ENK = dy_data.new_empty(len(ends_E), outputs, inputs, dtype=dtype)
    scaled_rows_by_rows[(triton.cdiv(outputs, tile.m) * triton.cdiv(inputs, tile.n), len(ends_E))](
        described(dy_data, tile.k, tile.m), dy_scale, described(x_data, tile.k, tile.n), x_scale, ends_E,
        described(dw_ENK, 1, tile.m, tile.n), len(dy_data), outputs, inputs,
        BM=tile.m, BN=tile.n, BK=tile.k, GROUP=tile.group, BF16=dtype == torch.bfloat16,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dw_ENK
