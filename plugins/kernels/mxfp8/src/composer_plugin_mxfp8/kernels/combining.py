"""Rows back to tokens, and the gradients of that. Sums run over a token's K rows in their order, in fp32, no atomics.

Bytes moved: combine reads K rows and writes one for each token; its backward reads an output row and a token's gradient
and writes a row. Legend: see `ops`.
"""

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.kernels.emit import inside
from composer_plugin_mxfp8.kernels.gather import load_tokens
from composer_plugin_mxfp8.kernels.launch import Tile, launch, op
from composer_plugin_mxfp8.kernels.numerics import bits, narrowed, native, widen
from composer_plugin_mxfp8.ops import Plan

COMBINE: Tile = (1, 1024, 2)
BACKWARD: Tile = (8, 512, 4)
"""Measured on an H200 (benchmarks/mxfp8.py)."""


@triton.jit
def combine_tile(
    out, rows_of, weights, total, cols,
    CHOSEN: tl.constexpr, WEIGHTED: tl.constexpr, COLS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """COLS columns of one token."""
    token, c = tl.program_id(0), tl.program_id(1) * COLS + tl.arange(0, COLS)
    sum = tl.zeros((COLS,), tl.float32)
    for k in tl.static_range(CHOSEN):
        row = tl.load(rows_of + token * CHOSEN + k).to(tl.int64)
        part = widen(tl.load(out + row * cols + c, mask=c < cols, other=0))
        if WEIGHTED:
            part = part * tl.load(weights + token * CHOSEN + k)
        sum += part
    tl.store(total + token.to(tl.int64) * cols + c, narrowed(sum, total.dtype.element_ty, NATIVE), mask=c < cols)


@triton.jit
def combine_backward_rows(
    dout, out, pairs_of, weights, dx, dweights, rows, cols, chosen,
    ROWS: tl.constexpr, COLS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """All columns of ROWS rows: dx = weight x dout, dweight = dout . out."""
    row = tl.program_id(0) * ROWS
    r = row + tl.arange(0, ROWS)
    pair = tl.load(pairs_of + r, mask=r < rows, other=-1)
    real = pair >= 0
    weight = tl.load(weights + pair, mask=real, other=0)
    dots = tl.zeros((ROWS, COLS), tl.float32)
    for col in range(0, cols, COLS):
        toward = load_tokens(dout, pairs_of, weights, row, col, rows, cols, chosen, False, ROWS, COLS, NATIVE)
        at, exists = inside(row, col, rows, cols, cols, ROWS, COLS)
        dots += toward * widen(tl.load(out + at, mask=exists & real[:, None], other=0))
        tl.store(dx + at, narrowed(toward * weight[:, None], dx.dtype.element_ty, NATIVE), mask=exists)
    tl.store(dweights + pair, tl.sum(dots, 1), mask=real)


@op
def _combine(
    out: torch.Tensor, rows_NK: torch.Tensor, weights: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    tokens, chosen = rows_NK.shape
    cols = out.shape[1]
    total = out.new_empty((tokens, cols), dtype=dtype)
    weights = None if weights is None else weights.float().contiguous()
    launch(
        combine_tile, (tokens, triton.cdiv(cols, COMBINE[1])), bits(out.contiguous()), rows_NK, weights, bits(total),
        cols, chosen, weights is not None, COMBINE[1], native(out), warps=COMBINE[2], fuse=False,
    )  # fmt: skip
    return total


@op
def _combine_backward(
    dout: torch.Tensor, out: torch.Tensor, pairs_R: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = out.shape
    dx = dout.new_empty((rows, cols))
    dweights = torch.empty(weights.shape, dtype=torch.float32, device=out.device)
    launch(
        combine_backward_rows, (triton.cdiv(rows, BACKWARD[0]),), bits(dout.contiguous()), bits(out.contiguous()),
        pairs_R, weights.float().contiguous(), bits(dx), dweights, rows, cols, weights.shape[1],
        *BACKWARD[:2], native(out), warps=BACKWARD[2], fuse=False,
    )  # fmt: skip
    return dx, dweights


def combine(
    out_RD: torch.Tensor, plan: Plan, weights_NK: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """See `Ops.combine`."""
    return _combine(out_RD, plan.rows_NK, weights_NK, dtype or out_RD.dtype)


def combine_backward(
    dout_ND: torch.Tensor, out_RD: torch.Tensor, plan: Plan, weights_NK: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.combine_backward`."""
    return _combine_backward(dout_ND, out_RD, plan.pairs_R, weights_NK)


def scatter_rows(dx_RD: torch.Tensor, plan: Plan, dtype: torch.dtype | None = None) -> torch.Tensor:
    """See `Ops.scatter_rows`."""
    return _combine(dx_RD, plan.rows_NK, None, dtype or dx_RD.dtype)
