"""From an fp32 tile in registers to MXFP8 in memory: the end of every kernel that quantizes.

What a kernel computes before (a load, a gather, SwiGLU) differs; how a tile becomes bytes stands here alone, so fused
and unfused paths give the same bytes. Legend: a tile is [ROWS, COLS] with its first row `row` and column `col`, of a
tensor [rows, cols] of which the kernel owns what stands before column `until`; sizes are such that each block lies
wholly inside or wholly outside tile, tensor and `until`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from composer_plugin_mxfp8.kernels.numerics import encode, inverse, magnitude, scale_byte


@triton.jit
def corner(cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """First row and column of this program's tile; neighboring programs stand side by side in a row."""
    wide = tl.cdiv(cols, COLS)
    return tl.program_id(0) // wide * ROWS, tl.program_id(0) % wide * COLS


@triton.jit
def span(col, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The columns of a tile. Of a tall one, whose columns are reduced, a thread takes 8 side by side and not 16 bytes'
    worth: more threads then stand along a row, and fewer hold the same columns and have to compare what they found.
    """
    c = col + tl.arange(0, COLS)
    if ROWS >= 32:
        c = tl.max_contiguous(c, 8)
    return c


@triton.jit
def inside(row, col, rows, until, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Offsets [ROWS, COLS] into a contiguous tensor of `cols` columns, and which stand before row and column's ends."""
    r = row + tl.arange(0, ROWS)
    c = span(col, ROWS, COLS)
    return r.to(tl.int64)[:, None] * cols + c[None, :], (r < rows)[:, None] & (c < until)[None, :]


@triton.jit
def emit_rows(
    x, data, scale, row, col, rows, until, cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, RCEIL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Store the tile in blocks of 1x32."""
    blocks = x.reshape(ROWS, COLS // 32, 32)
    byte = scale_byte(tl.max(magnitude(blocks), axis=2), RCEIL)
    codes = encode(blocks * inverse(byte)[:, :, None], NATIVE).reshape(ROWS, COLS)
    at, exists = inside(row, col, rows, until, cols, ROWS, COLS)
    tl.store(data + at, codes, mask=exists)
    at, exists = inside(row, col // 32, rows, until // 32, cols // 32, ROWS, COLS // 32)
    tl.store(scale + at, byte.to(tl.uint8), mask=exists)


@triton.jit
def emit_columns(
    x, data, scale, row, col, rows, until, cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, RCEIL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Store the tile in blocks of 32x1."""
    blocks = x.reshape(ROWS // 32, 32, COLS)
    byte = scale_byte(tl.max(magnitude(blocks), axis=1), RCEIL)
    codes = encode(blocks * inverse(byte)[:, None, :], NATIVE).reshape(ROWS, COLS)
    at, exists = inside(row, col, rows, until, cols, ROWS, COLS)
    tl.store(data + at, codes, mask=exists)
    at, exists = inside(row // 32, col, rows // 32, until, cols, ROWS // 32, COLS)
    tl.store(scale + at, byte.to(tl.uint8), mask=exists)


@triton.jit
def emit_squares(
    x, data, scale, row, col, rows, until, cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, RCEIL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Store the tile in blocks of 32x32."""
    blocks = x.reshape(ROWS // 32, 32, COLS // 32, 32)
    byte = scale_byte(tl.max(tl.max(magnitude(blocks), axis=3), axis=1), RCEIL)
    codes = encode(blocks * inverse(byte)[:, None, :, None], NATIVE).reshape(ROWS, COLS)
    at, exists = inside(row, col, rows, until, cols, ROWS, COLS)
    tl.store(data + at, codes, mask=exists)
    at, exists = inside(row // 32, col // 32, rows // 32, until // 32, cols // 32, ROWS // 32, COLS // 32)
    tl.store(scale + at, byte.to(tl.uint8), mask=exists)
