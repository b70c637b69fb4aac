"""Grouped products on Hopper (sm_90): bf16 wgmma on what MXFP8 stands for, since wgmma has no block scales.

Where E4M3 becomes bf16, exactly, decides the speed. The left operand of wgmma may come from registers, so it can stay
E4M3 in memory and be scaled on its way; the right one must lie in shared memory as bf16 (tl.dot_scaled writes it back
there in every step). With many rows an expert neither pays: the conversion takes turns with the tensor cores and costs
a quarter of their time, while to dequantize both operands first (`matmul`) costs a tenth, and no more than a quarter
where a product has as few as 768 outputs. With few rows it is the weights that cost, and `weights_by_rows` leaves them
E4M3. The other two kernels take operands that were dequantized.

Legend: R rows sorted by expert, each expert's from a multiple of 128; a weight is [E, N, K]. In a product [M, N] over
K, BM, BN and BK are the sides of its tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from attrs import frozen
from triton.tools.tensor_descriptor import TensorDescriptor

from composer_plugin_mxfp8.kernels.tiles import owner, place, result, scaled, scales, wide


@frozen
class Tile:
    """How a product is cut up; measured, see docs."""

    m: int
    n: int
    k: int
    warps: int = 8
    stages: int = 3
    group: int = 8
    """Rows of tiles that are computed together."""


ROWS = Tile(128, 128, 64, warps=4, stages=4)
FEW = Tile(128, 128, 64, stages=4)
WGRAD = Tile(128, 256, 64, stages=3)


@triton.jit
def rows_by_weights(
    a_desc, w_desc, ends_ptr, y_desc, rows, N, K, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EXPERTS: tl.constexpr, GROUP: tl.constexpr,
    BF16: tl.constexpr, OUTPUTS_FIRST: tl.constexpr,
):  # fmt: skip
    """y[r] = sum over k of a[r, k] w[e][n, k], or w[e][k, n] unless OUTPUTS_FIRST; both bf16."""
    high, across = place(tl.program_id(0), rows // BM, tl.cdiv(N, BN), GROUP)
    m = high * BM
    n = across * BN
    expert = owner(ends_ptr, m, E, EXPERTS)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.where(expert < E, K, 0), BK):
        if OUTPUTS_FIRST:
            w = wide(w_desc.load([expert, n, k]).reshape(BN, BK)).T
        else:
            w = wide(w_desc.load([expert, k, n]).reshape(BK, BN))
        acc = tl.dot(wide(a_desc.load([m, k])), w, acc)
    y_desc.store([m, n], result(acc, BF16))


@triton.jit
def weights_by_rows(
    a_desc, scale_ptr, w_desc, ends_ptr, y_desc, rows, N, K, E, blocks,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EXPERTS: tl.constexpr, GROUP: tl.constexpr,
    BF16: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """y[r] = sum over k of w[e][n, k] a[r, k] with `w` in E4M3 and `a` in bf16: tiles of y transposed."""
    high, across = place(tl.program_id(0), rows // BM, tl.cdiv(N, BN), GROUP)
    m = high * BM
    n = across * BN
    expert = owner(ends_ptr, m, E, EXPERTS)
    if expert < E:
        outputs = n + tl.arange(0, BN)
        limit = tl.where(outputs < N, blocks, 0)
        row_ptr = scale_ptr + (expert.to(tl.int64) * N + outputs) * blocks
        acc = tl.zeros((BN, BM), tl.float32)
        bytes = scales(row_ptr, 0, limit, BK // 32, WHOLE)
        for k in range(0, K, BK):
            w = scaled(w_desc.load([expert, n, k]).reshape(BN, BK), bytes, BN, BK)
            bytes = scales(row_ptr, (k + BK) // 32, limit, BK // 32, WHOLE)
            acc = tl.dot(w, wide(a_desc.load([m, k])).T, acc)
        y_desc.store([m, n], result(acc, BF16).T)


@triton.jit
def rows_by_rows(
    dy_desc, x_desc, ends_ptr, dw_desc, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, BF16: tl.constexpr,
):  # fmt: skip
    """dw[e][n, k] = sum over the expert's rows of dy[r, n] x[r, k], both bf16."""
    expert = tl.program_id(1)
    first = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
    last = tl.load(ends_ptr + expert)
    high, across = place(tl.program_id(0), tl.cdiv(N, BM), tl.cdiv(K, BN), GROUP)
    n = high * BM
    k = across * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for r in range(first, last, BK):
        acc = tl.dot(wide(dy_desc.load([r, n])).T, wide(x_desc.load([r, k])), acc)
    dw_desc.store([expert, n, k], result(acc, BF16).reshape(1, BM, BN))


def grouped(
    a_RK: torch.Tensor,
    w: torch.Tensor,
    ends_E: torch.Tensor,
    outputs_first: bool,
    dtype: torch.dtype,
    tile: Tile = ROWS,
) -> torch.Tensor:
    """[R, N] of `rows_by_weights`: `w` is [E, N, K] if outputs_first, else [E, K, N]."""
    experts, outputs, depth = w.shape if outputs_first else (w.shape[0], w.shape[2], w.shape[1])
    y_RN = a_RK.new_empty(len(a_RK), outputs, dtype=dtype)
    rows_by_weights[(len(a_RK) // tile.m * triton.cdiv(outputs, tile.n),)](
        described(a_RK, tile.m, tile.k),
        described(w, 1, *((tile.n, tile.k) if outputs_first else (tile.k, tile.n))),
        ends_E, described(y_RN, tile.m, tile.n), len(a_RK), outputs, depth, experts,
        BM=tile.m, BN=tile.n, BK=tile.k, EXPERTS=triton.next_power_of_2(experts), GROUP=tile.group,
        BF16=dtype == torch.bfloat16, OUTPUTS_FIRST=outputs_first, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y_RN


def grouped_swapped(
    a_RK: torch.Tensor,
    w_data: torch.Tensor,
    w_scale: torch.Tensor,
    ends_E: torch.Tensor,
    dtype: torch.dtype,
    tile: Tile = FEW,
) -> torch.Tensor:
    """[R, N] of `weights_by_rows`: `a` bf16, `w` E4M3 [E, N, K] scaled 1x32."""
    experts, outputs, depth = w_data.shape
    y_RN = a_RK.new_empty(len(a_RK), outputs, dtype=dtype)
    weights_by_rows[(len(a_RK) // tile.m * triton.cdiv(outputs, tile.n),)](
        described(a_RK, tile.m, tile.k), w_scale, described(w_data, 1, tile.n, tile.k), ends_E,
        described(y_RN, tile.m, tile.n), len(a_RK), outputs, depth, experts, depth // 32,
        BM=tile.m, BN=tile.n, BK=tile.k, EXPERTS=triton.next_power_of_2(experts), GROUP=tile.group,
        BF16=dtype == torch.bfloat16, WHOLE=depth % tile.k == 0, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y_RN


def wgrad(
    dy_RN: torch.Tensor, x_RK: torch.Tensor, ends_E: torch.Tensor, dtype: torch.dtype, tile: Tile = WGRAD
) -> torch.Tensor:
    """[E, N, K] of `rows_by_rows`."""
    outputs, inputs = dy_RN.shape[1], x_RK.shape[1]
    dw_ENK = dy_RN.new_empty(len(ends_E), outputs, inputs, dtype=dtype)
    rows_by_rows[(triton.cdiv(outputs, tile.m) * triton.cdiv(inputs, tile.n), len(ends_E))](
        described(dy_RN, tile.k, tile.m), described(x_RK, tile.k, tile.n), ends_E, described(dw_ENK, 1, tile.m, tile.n),
        outputs, inputs, BM=tile.m, BN=tile.n, BK=tile.k, GROUP=tile.group,
        BF16=dtype == torch.bfloat16, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dw_ENK


def described(x: torch.Tensor, *block: int) -> TensorDescriptor:
    """A tensor that is loaded and stored in blocks by the copy engine, which reads zeros past its edges."""
    return TensorDescriptor.from_tensor(x, list(block))
