"""SwiGLU and its gradient, quantized before they leave the registers.

silu(g) = g s and its derivative s + silu(g) (1 - s), with s the sigmoid. Results are rounded to the type of h first, as
if they had been stored, so that fused and unfused paths give the same bytes. Bytes moved for each element of act: 4 in
and 1 + 1/32 out forward (twice when columns are wanted); 6 in and 4 + 4/32 out backward. Legend: see `ops`.
"""

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.formats import COLUMNWISE, ROWWISE, Scaling
from composer_plugin_mxfp8.kernels.emit import corner, emit_columns, emit_rows, inside
from composer_plugin_mxfp8.kernels.launch import Tile, as_e4m3, grid, launch, new_blocks, op, rceil, two
from composer_plugin_mxfp8.kernels.numerics import bits, native, through, widen
from composer_plugin_mxfp8.ops import Blocks, Plan

TILES: dict[str, Tile] = {"rows": (16, 256, 8), "both": (32, 64, 2), "backward": (32, 64, 2)}
REGISTERS = {"backward": 128, "weighted": 168}
"""Most registers of a thread: what the compiler would take beyond leaves too few warps to hide a load. Both measured on
an H200 (benchmarks/mxfp8.py)."""


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), without an overflow on either side."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def load_halves(h, row, col, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """fp32 of gate and up for a tile of act [rows, cols]."""
    at, exists = inside(row, col, rows, cols, 2 * cols, ROWS, COLS)
    return widen(tl.load(h + at, mask=exists, other=0)), widen(tl.load(h + at + cols, mask=exists, other=0))


@triton.jit
def swiglu_tile(
    h, data, scale, columns_data, columns_scale, rows, cols,
    BOTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, RCEIL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Rows of act, and columns when BOTH."""
    row, col = corner(cols, ROWS, COLS)
    gate, up = load_halves(h, row, col, rows, cols, ROWS, COLS)
    act = through(gate * sigmoid(gate) * up, h.dtype.element_ty, NATIVE)
    emit_rows(act, data, scale, row, col, rows, cols, cols, ROWS, COLS, RCEIL, NATIVE)
    if BOTH:
        emit_columns(act, columns_data, columns_scale, row, col, rows, cols, cols, ROWS, COLS, RCEIL, NATIVE)


@triton.jit
def swiglu_backward_tile(
    dact, h, pairs_of, weights, data, scale, columns_data, columns_scale, act_data, act_scale, dots, rows, cols,
    WEIGHTED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, RCEIL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Both halves of dh; WEIGHTED adds columns of weight x act, and this tile's share of each row's dact . act."""
    row, col = corner(cols, ROWS, COLS)
    gate, up = load_halves(h, row, col, rows, cols, ROWS, COLS)
    at, exists = inside(row, col, rows, cols, cols, ROWS, COLS)
    toward = widen(tl.load(dact + at, mask=exists, other=0))
    half = sigmoid(gate)
    silu = gate * half
    if WEIGHTED:
        r = row + tl.arange(0, ROWS)
        pair = tl.load(pairs_of + r, mask=r < rows, other=-1)
        weight = tl.load(weights + pair, mask=pair >= 0, other=0)[:, None]
        act = through(silu * up, h.dtype.element_ty, NATIVE)
        share = tl.sum(toward * act, 1)
        tl.store(dots + (col // COLS).to(tl.int64) * rows + r, share, mask=r < rows)
        act = through(act * weight, h.dtype.element_ty, NATIVE)
        emit_columns(act, act_data, act_scale, row, col, rows, cols, cols, ROWS, COLS, RCEIL, NATIVE)
        toward = toward * weight
    dgate = through(toward * up * (half + silu * (1.0 - half)), h.dtype.element_ty, NATIVE)
    emit_rows(dgate, data, scale, row, col, rows, cols, 2 * cols, ROWS, COLS, RCEIL, NATIVE)
    emit_columns(dgate, columns_data, columns_scale, row, col, rows, cols, 2 * cols, ROWS, COLS, RCEIL, NATIVE)
    dup = through(toward * silu, h.dtype.element_ty, NATIVE)
    emit_rows(dup, data, scale, row, cols + col, rows, 2 * cols, 2 * cols, ROWS, COLS, RCEIL, NATIVE)
    emit_columns(dup, columns_data, columns_scale, row, cols + col, rows, 2 * cols, 2 * cols, ROWS, COLS, RCEIL, NATIVE)


@op
def _swiglu_quantize(h: torch.Tensor, rceil: bool) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = h.shape[0], h.shape[1] // 2
    made, tile = new_blocks(h, rows, cols, ROWWISE), TILES["rows"]
    launch(
        swiglu_tile, grid(rows, cols, tile), bits(h.contiguous()), *made, *made, rows, cols,
        False, *tile[:2], rceil, native(h), warps=tile[2], fuse=False,
    )  # fmt: skip
    return as_e4m3(made)


@op
def _swiglu_quantize_both(
    h: torch.Tensor, rceil: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, cols = h.shape[0], h.shape[1] // 2
    along, down, tile = new_blocks(h, rows, cols, ROWWISE), new_blocks(h, rows, cols, COLUMNWISE), TILES["both"]
    launch(
        swiglu_tile, grid(rows, cols, tile), bits(h.contiguous()), *along, *down, rows, cols,
        True, *tile[:2], rceil, native(h), warps=tile[2], fuse=False,
    )  # fmt: skip
    return *as_e4m3(along), *as_e4m3(down)


@op
def _swiglu_backward(
    dact: torch.Tensor, h: torch.Tensor, rceil: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, cols = dact.shape
    along, down = new_blocks(h, rows, 2 * cols, ROWWISE), new_blocks(h, rows, 2 * cols, COLUMNWISE)
    tile = TILES["backward"]
    launch(
        swiglu_backward_tile, grid(rows, cols, tile), bits(dact.contiguous()), bits(h.contiguous()), None, None,
        *along, *down, None, None, None, rows, cols, False, *tile[:2], rceil, native(h), warps=tile[2], fuse=False,
        maxnreg=REGISTERS["backward"],
    )  # fmt: skip
    return *as_e4m3(along), *as_e4m3(down)


@op
def _swiglu_backward_weighted(
    dact: torch.Tensor, h: torch.Tensor, pairs_R: torch.Tensor, weights: torch.Tensor, rceil: bool
) -> tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]:  # fmt: skip
    rows, cols = dact.shape
    along, down = new_blocks(h, rows, 2 * cols, ROWWISE), new_blocks(h, rows, 2 * cols, COLUMNWISE)
    tile = TILES["backward"]
    act = new_blocks(h, rows, cols, COLUMNWISE)
    dots = torch.empty((triton.cdiv(cols, tile[1]), rows), dtype=torch.float32, device=h.device)
    launch(
        swiglu_backward_tile, grid(rows, cols, tile), bits(dact.contiguous()), bits(h.contiguous()), pairs_R,
        weights.float().contiguous(), *along, *down, *act, dots, rows, cols, True, *tile[:2], rceil, native(h),
        warps=tile[2], fuse=False, maxnreg=REGISTERS["weighted"],
    )  # fmt: skip
    return *as_e4m3(along), *as_e4m3(down), *as_e4m3(act), dots.sum(0)


def swiglu_quantize(h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.swiglu_quantize`."""
    return Blocks(*_swiglu_quantize(h_R2F, rceil(scaling)))


def swiglu_quantize_both(h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> tuple[Blocks, Blocks]:
    """See `Ops.swiglu_quantize_both`."""
    return two(_swiglu_quantize_both(h_R2F, rceil(scaling)))


def swiglu_backward(dact_RF: torch.Tensor, h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> tuple[Blocks, Blocks]:
    """See `Ops.swiglu_backward`."""
    return two(_swiglu_backward(dact_RF, h_R2F, rceil(scaling)))


def swiglu_backward_weighted(
    dact_RF: torch.Tensor, h_R2F: torch.Tensor, plan: Plan, weights_NK: torch.Tensor, scaling: Scaling = "rceil"
) -> tuple[Blocks, Blocks, Blocks, torch.Tensor]:
    """See `Ops.swiglu_backward_weighted`."""
    made = _swiglu_backward_weighted(dact_RF, h_R2F, plan.pairs_R, weights_NK, rceil(scaling))
    return *two(made), Blocks(*made[4:6]), made[6][plan.rows_NK]
