"""MXFP8 back to bf16 or fp32. Bytes moved for each element: 1 + 1/32 in, 2 or 4 out. Legend: see `ops`."""

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.formats import Shape
from composer_plugin_mxfp8.kernels.emit import corner, inside
from composer_plugin_mxfp8.kernels.launch import Tile, grid, launch, op
from composer_plugin_mxfp8.kernels.numerics import bits, decode, narrowed, native, power
from composer_plugin_mxfp8.ops import Blocks

TILES: dict[int, Tile] = {1: (16, 256, 4), 32: (32, 256, 4)}
"""By the rows of a block. Measured on an H200 (benchmarks/mxfp8.py)."""


@triton.jit
def load_rows(
    data, scale, row, col, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, NATIVE: tl.constexpr
):  # fmt: skip
    """fp32 of a tile in blocks of 1x32; 0 outside."""
    return load_blocks(data, scale, row, col, rows, cols, 1, 32, ROWS, COLS, NATIVE)


@triton.jit
def load_blocks(
    data, scale, row, col, rows, cols,
    DOWN: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """fp32 of a tile in blocks of DOWN x ALONG; 0 outside."""
    at, exists = inside(row, col, rows, cols, cols, ROWS, COLS)
    values = decode(tl.load(data + at, mask=exists, other=0), NATIVE)
    at, exists = inside(
        row // DOWN, col // ALONG, rows // DOWN, cols // ALONG, cols // ALONG, ROWS // DOWN, COLS // ALONG
    )
    factor = power(tl.load(scale + at, mask=exists, other=0))
    blocks = values.reshape(ROWS // DOWN, DOWN, COLS // ALONG, ALONG) * factor[:, None, :, None]
    return blocks.reshape(ROWS, COLS)


@triton.jit
def dequantize_tile(
    data, scale, out, rows, cols,
    DOWN: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Write the tile in the type of `out`."""
    row, col = corner(cols, ROWS, COLS)
    tile = load_blocks(data, scale, row, col, rows, cols, DOWN, ALONG, ROWS, COLS, NATIVE)
    at, exists = inside(row, col, rows, cols, cols, ROWS, COLS)
    tl.store(out + at, narrowed(tile, out.dtype.element_ty, NATIVE), mask=exists)


@op
def _dequantize(data: torch.Tensor, scale: torch.Tensor, down: int, along: int, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(data.shape, dtype=dtype, device=data.device)
    cols = data.shape[-1]
    rows = data.numel() // max(1, cols)
    tile = TILES[down]
    launch(
        dequantize_tile, grid(rows, cols, tile), bits(data.contiguous()), scale.contiguous(), bits(out), rows, cols,
        down, along, *tile[:2], native(data), warps=tile[2],
    )  # fmt: skip
    return out


def dequantize(x: Blocks, block: Shape, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.dequantize`."""
    out: torch.Tensor = _dequantize(*x, *block, dtype)
    return out
