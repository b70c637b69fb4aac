"""Tokens to the rows of a plan: quantized on the way, or as MXFP8 bytes that were quantized before.

Bytes moved for each element of a row: 2 in from bf16 (1 + 1/32 from MXFP8), 1 + 1/32 out, twice when columns are wanted
too. A token is read once for each of its experts, mostly from the cache. Padding is zero, data and scale.
Legend: see `ops`.
"""

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.formats import COLUMNWISE, ROWWISE, Scaling
from composer_plugin_mxfp8.kernels.emit import corner, emit_columns, emit_rows, inside, span
from composer_plugin_mxfp8.kernels.launch import Pair, Tile, as_e4m3, grid, launch, new_blocks, op, rceil, two
from composer_plugin_mxfp8.kernels.numerics import bits, decode, native, power, through, widen
from composer_plugin_mxfp8.ops import Blocks, Plan

TILES: dict[str, Tile] = {
    "rows": (4, 1024, 4),
    "both": (32, 128, 2),
    "bytes": (4, 1024, 4),
    "scales": (128, 32, 4),
    "bytes to columns": (32, 128, 1),
    "bytes to both": (32, 128, 2),
}
"""Measured on an H200 (benchmarks/mxfp8.py)."""


@triton.jit
def load_tokens(
    x, pairs_of, weights, row, col, rows, cols, chosen,
    WEIGHTED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """fp32 of the tokens of ROWS rows, times their weights and rounded to the type of x; 0 on padding."""
    r, c = row + tl.arange(0, ROWS), span(col, ROWS, COLS)
    pair = tl.load(pairs_of + r, mask=r < rows, other=-1)
    real = pair >= 0
    at = (pair // chosen).to(tl.int64)[:, None] * cols + c[None, :]
    tile = widen(tl.load(x + at, mask=real[:, None] & (c < cols)[None, :], other=0))
    if WEIGHTED:
        weight = tl.load(weights + pair, mask=real, other=0)
        tile = through(tile * weight[:, None], x.dtype.element_ty, NATIVE)
    return tile


@triton.jit
def gather_quantize_tile(
    x, pairs_of, weights, data, scale, columns_data, columns_scale, rows, cols, chosen,
    WEIGHTED: tl.constexpr, BOTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    RCEIL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Load and emit."""
    row, col = corner(cols, ROWS, COLS)
    tile = load_tokens(x, pairs_of, weights, row, col, rows, cols, chosen, WEIGHTED, ROWS, COLS, NATIVE)
    emit_rows(tile, data, scale, row, col, rows, cols, cols, ROWS, COLS, RCEIL, NATIVE)
    if BOTH:
        emit_columns(tile, columns_data, columns_scale, row, col, rows, cols, cols, ROWS, COLS, RCEIL, NATIVE)


@triton.jit
def gather_tile(x, pairs_of, out, rows, cols, chosen, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Copy bytes."""
    row, col = corner(cols, ROWS, COLS)
    r, c = row + tl.arange(0, ROWS), col + tl.arange(0, COLS)
    pair = tl.load(pairs_of + r, mask=r < rows, other=-1)
    here = (pair // chosen).to(tl.int64)[:, None] * cols + c[None, :]
    tile = tl.load(x + here, mask=(pair >= 0)[:, None] & (c < cols)[None, :], other=0)
    at, exists = inside(row, col, rows, cols, cols, ROWS, COLS)
    tl.store(out + at, tile, mask=exists)


@triton.jit
def gather_columns_tile(
    x, x_scale, pairs_of, data, scale, columns_data, columns_scale, rows, cols, chosen,
    BOTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Blocks of 1x32 in, of 32x1 out, and copied as they are when BOTH."""
    row, col = corner(cols, ROWS, COLS)
    pair = tl.load(pairs_of + row + tl.arange(0, ROWS), mask=row + tl.arange(0, ROWS) < rows, other=-1)
    token, real = (pair // chosen).to(tl.int64)[:, None], (pair >= 0)[:, None]
    c, block = span(col, ROWS, COLS)[None, :], col // 32 + tl.arange(0, COLS // 32)[None, :]
    codes = tl.load(x + token * cols + c, mask=real & (c < cols), other=0)
    byte = tl.load(x_scale + token * (cols // 32) + block, mask=real & (block < cols // 32), other=0)
    if BOTH:
        at, exists = inside(row, col, rows, cols, cols, ROWS, COLS)
        tl.store(data + at, codes, mask=exists)
        at, exists = inside(row, col // 32, rows, cols // 32, cols // 32, ROWS, COLS // 32)
        tl.store(scale + at, byte, mask=exists)
    tile = decode(codes, NATIVE).reshape(ROWS, COLS // 32, 32) * power(byte)[:, :, None]
    tile = tile.reshape(ROWS, COLS)
    emit_columns(tile, columns_data, columns_scale, row, col, rows, cols, cols, ROWS, COLS, True, NATIVE)


def _gather(
    x: torch.Tensor, pairs_R: torch.Tensor, chosen: int, weights: torch.Tensor | None, kind: str, rceil: bool
) -> list[Pair]:
    rows, cols = pairs_R.shape[0], x.shape[1]
    made: list[Pair] = [new_blocks(x, rows, cols, ROWWISE)]
    if kind == "both":
        made.append(new_blocks(x, rows, cols, COLUMNWISE))
    weights = None if weights is None else weights.float().contiguous()
    tile = TILES[kind]
    launch(
        gather_quantize_tile, grid(rows, cols, tile), bits(x.contiguous()), pairs_R, weights, *made[0], *made[-1],
        rows, cols, chosen, weights is not None, kind == "both", *tile[:2], rceil, native(x), warps=tile[2],
    )  # fmt: skip
    return [as_e4m3(pair) for pair in made]


@op
def _gather_quantize(
    x: torch.Tensor, pairs_R: torch.Tensor, chosen: int, weights: torch.Tensor | None, rceil: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return _gather(x, pairs_R, chosen, weights, "rows", rceil)[0]


@op
def _gather_quantize_both(
    x: torch.Tensor, pairs_R: torch.Tensor, chosen: int, weights: torch.Tensor | None, rceil: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns = _gather(x, pairs_R, chosen, weights, "both", rceil)
    return *rows, *columns


@op
def _gather_rows(
    data: torch.Tensor, scale: torch.Tensor, pairs_R: torch.Tensor, chosen: int
) -> tuple[torch.Tensor, torch.Tensor]:
    made = new_blocks(data, pairs_R.shape[0], data.shape[1], ROWWISE)
    for x, out, kind in ((bits(data), made[0], "bytes"), (scale, made[1], "scales")):
        rows, cols = out.shape
        tile = TILES[kind]
        launch(
            gather_tile, grid(rows, cols, tile), x.contiguous(), pairs_R, out, rows, cols, chosen, *tile[:2],
            warps=tile[2],
        )  # fmt: skip
    return as_e4m3(made)


def _gather_blocks(
    data: torch.Tensor, scale: torch.Tensor, pairs_R: torch.Tensor, chosen: int, both: bool
) -> list[Pair]:
    rows, cols = pairs_R.shape[0], data.shape[1]
    made = [new_blocks(data, rows, cols, block) for block in ((ROWWISE, COLUMNWISE) if both else (COLUMNWISE,))]
    tile = TILES["bytes to both" if both else "bytes to columns"]
    launch(
        gather_columns_tile, grid(rows, cols, tile), bits(data.contiguous()), scale.contiguous(), pairs_R,
        *made[0], *made[-1], rows, cols, chosen, both, *tile[:2], native(data), warps=tile[2],
    )  # fmt: skip
    return [as_e4m3(pair) for pair in made]


@op
def _gather_columns(
    data: torch.Tensor, scale: torch.Tensor, pairs_R: torch.Tensor, chosen: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return _gather_blocks(data, scale, pairs_R, chosen, False)[0]


@op
def _gather_both(
    data: torch.Tensor, scale: torch.Tensor, pairs_R: torch.Tensor, chosen: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns = _gather_blocks(data, scale, pairs_R, chosen, True)
    return *rows, *columns


def gather_quantize(
    x_ND: torch.Tensor, plan: Plan, scaling: Scaling = "rceil", weights_NK: torch.Tensor | None = None
) -> Blocks:
    """See `Ops.gather_quantize`."""
    return Blocks(*_gather_quantize(x_ND, plan.pairs_R, plan.chosen, weights_NK, rceil(scaling)))


def gather_quantize_both(
    x_ND: torch.Tensor, plan: Plan, scaling: Scaling = "rceil", weights_NK: torch.Tensor | None = None
) -> tuple[Blocks, Blocks]:
    """See `Ops.gather_quantize_both`."""
    return two(_gather_quantize_both(x_ND, plan.pairs_R, plan.chosen, weights_NK, rceil(scaling)))


def gather_rows(x: Blocks, plan: Plan) -> Blocks:
    """See `Ops.gather_rows`."""
    return Blocks(*_gather_rows(x.data, x.scale, plan.pairs_R, plan.chosen))


def gather_both(x: Blocks, plan: Plan) -> tuple[Blocks, Blocks]:
    """See `Ops.gather_both`."""
    return two(_gather_both(x.data, x.scale, plan.pairs_R, plan.chosen))


def gather_columns(x: Blocks, plan: Plan) -> Blocks:
    """See `Ops.gather_columns`."""
    return Blocks(*_gather_columns(x.data, x.scale, plan.pairs_R, plan.chosen))
