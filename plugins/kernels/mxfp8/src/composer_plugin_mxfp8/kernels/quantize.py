"""Quantize a matrix: 1x32, 32x1, both in one read, 32x32; and rows to columns from what was quantized before.

Bytes moved for each element of bf16: 2 in, 1 + 1/32 out (2 + 2/32 when both are wanted); rows to columns: 1 + 1/32 in.
One program handles one tile and nothing is kept between tiles. Legend: see `ops`.
"""

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.formats import COLUMNWISE, ROWWISE, SQUARE, Scaling, Shape
from composer_plugin_mxfp8.kernels.dequantizing import load_rows
from composer_plugin_mxfp8.kernels.emit import corner, emit_columns, emit_rows, emit_squares, inside
from composer_plugin_mxfp8.kernels.launch import Pair, Tile, as_e4m3, grid, launch, new_blocks, op, rceil, two
from composer_plugin_mxfp8.kernels.numerics import bits, native, widen
from composer_plugin_mxfp8.ops import Blocks

TILES: dict[str, Tile] = {
    "rows": (16, 256, 4),
    "columns": (32, 128, 2),
    "both": (32, 128, 2),
    "squares": (32, 256, 4),
    "requantize": (32, 128, 1),
}
"""Measured on an H200 (benchmarks/mxfp8.py)."""
BLOCKS = {"rows": (ROWWISE,), "columns": (COLUMNWISE,), "both": (ROWWISE, COLUMNWISE), "squares": (SQUARE,)}


@triton.jit
def quantize_tile(
    x, data, scale, columns_data, columns_scale, rows, cols,
    KIND: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, RCEIL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """KIND is "rows", "columns", "both" or "squares"; `data` and `scale` take whichever is alone."""
    row, col = corner(cols, ROWS, COLS)
    at, exists = inside(row, col, rows, cols, cols, ROWS, COLS)
    tile = widen(tl.load(x + at, mask=exists, other=0))
    if KIND == "columns":
        emit_columns(tile, data, scale, row, col, rows, cols, cols, ROWS, COLS, RCEIL, NATIVE)
    elif KIND == "squares":
        emit_squares(tile, data, scale, row, col, rows, cols, cols, ROWS, COLS, RCEIL, NATIVE)
    else:
        emit_rows(tile, data, scale, row, col, rows, cols, cols, ROWS, COLS, RCEIL, NATIVE)
    if KIND == "both":
        emit_columns(tile, columns_data, columns_scale, row, col, rows, cols, cols, ROWS, COLS, RCEIL, NATIVE)


@triton.jit
def requantize_tile(
    data, scale, columns_data, columns_scale, rows, cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """1x32 in, 32x1 out."""
    row, col = corner(cols, ROWS, COLS)
    tile = load_rows(data, scale, row, col, rows, cols, ROWS, COLS, NATIVE)
    emit_columns(tile, columns_data, columns_scale, row, col, rows, cols, cols, ROWS, COLS, True, NATIVE)


def _quantize(x: torch.Tensor, kind: str, rceil: bool) -> list[Pair]:
    x_MK = x.contiguous().view(-1, x.shape[-1])
    rows, cols = x_MK.shape
    made = [new_blocks(x, rows, cols, block) for block in BLOCKS[kind]]
    tile = TILES[kind]
    launch(
        quantize_tile, grid(rows, cols, tile), bits(x_MK), *made[0], *made[-1], rows, cols,
        kind, *tile[:2], rceil, native(x), warps=tile[2],
    )  # fmt: skip
    return [as_e4m3(pair) for pair in made]


@op
def _quantize_rows(x: torch.Tensor, rceil: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return _quantize(x, "rows", rceil)[0]


@op
def _quantize_columns(x: torch.Tensor, rceil: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return _quantize(x, "columns", rceil)[0]


@op
def _quantize_both(x: torch.Tensor, rceil: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns = _quantize(x, "both", rceil)
    return *rows, *columns


@op
def _quantize_squares(x: torch.Tensor, rceil: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return _quantize(x, "squares", rceil)[0]


@op
def _requantize_columns(data: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = data.shape
    made = new_blocks(data, rows, cols, COLUMNWISE)
    tile = TILES["requantize"]
    launch(
        requantize_tile, grid(rows, cols, tile), bits(data), scale, *made, rows, cols,
        *tile[:2], native(data), warps=tile[2],
    )  # fmt: skip
    return as_e4m3(made)


def quantize_rows(x_MK: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_rows`."""
    return Blocks(*_quantize_rows(x_MK, rceil(scaling)))


def quantize_columns(x_MK: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_columns`."""
    return Blocks(*_quantize_columns(x_MK, rceil(scaling)))


def quantize_both(x_MK: torch.Tensor, scaling: Scaling = "rceil") -> tuple[Blocks, Blocks]:
    """See `Ops.quantize_both`."""
    return two(_quantize_both(x_MK, rceil(scaling)))


def quantize_weights(w_ENK: torch.Tensor, block: Shape, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_weights`: experts stand below each other, N being a multiple of the block's rows.

    Raises:
        ValueError: a dimension is not a multiple of its block.
    """
    experts, rows, cols = w_ENK.shape
    if rows % block[0]:
        raise ValueError(f"MXFP8 blocks of {block[0]}x{block[1]} do not divide [{rows}, {cols}]; pad the tensor")
    chosen = {ROWWISE: _quantize_rows, COLUMNWISE: _quantize_columns, SQUARE: _quantize_squares}[block]
    data, scale = chosen(w_ENK.reshape(-1, cols), rceil(scaling))
    return Blocks(data.view(w_ENK.shape), scale.view(experts, rows // block[0], cols // block[1]))


def requantize_columns(x: Blocks) -> Blocks:
    """See `Ops.requantize_columns`."""
    return Blocks(*_requantize_columns(*x))
