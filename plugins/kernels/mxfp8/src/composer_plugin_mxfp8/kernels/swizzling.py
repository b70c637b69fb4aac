"""Scales to the layout of tcgen05 and back (`formats.swizzle` says which). A byte is read and written once.

One program handles tiles of 128 x 4 scales that stand side by side; what lies past the edge is written as 0.
"""

import math

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.kernels.launch import launch, op

SIDE = 4
"""Tiles of a program: 16 scales of each row, which are read together."""


@triton.jit
def swizzle_tiles(
    plain, swizzled, rows, cols, wide, batch_stride, row_stride, col_stride,
    SIDE: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Copy the scales of up to SIDE tiles of one batch entry; BACK goes from swizzled to plain."""
    batch, tall, first = tl.program_id(0), tl.program_id(1), tl.program_id(2) * SIDE
    at = tl.arange(0, SIDE * 512)
    tile = first + at // 512
    row = tall * 128 + (at % 16) // 4 * 32 + at % 512 // 16
    col = tile * 4 + at % 4
    there = swizzled + (batch.to(tl.int64) * tl.num_programs(1) + tall) * wide * 512 + tile * 512 + at % 512
    here = plain + batch.to(tl.int64) * batch_stride + row.to(tl.int64) * row_stride + col.to(tl.int64) * col_stride
    exists = (row < rows) & (col < cols)
    if BACK:
        tl.store(here, tl.load(there, mask=exists, other=0), mask=exists)
    else:
        tl.store(there, tl.load(here, mask=exists, other=0), mask=tile < wide)


def _run(plain: torch.Tensor, swizzled: torch.Tensor, back: bool) -> None:
    rows, cols = plain.shape[1:]
    tall, wide = swizzled.shape[1:3]
    where = (plain.shape[0], tall, triton.cdiv(wide, SIDE))
    launch(swizzle_tiles, where, plain, swizzled, rows, cols, wide, *plain.stride(), SIDE, back)


@op
def _swizzle(scale: torch.Tensor) -> torch.Tensor:
    *batch, rows, cols = scale.shape
    plain = scale.reshape(math.prod(batch), rows, cols)
    out = scale.new_empty((plain.shape[0], triton.cdiv(rows, 128), triton.cdiv(cols, 4), 32, 4, 4))
    _run(plain, out, False)
    return out.view(*batch, *out.shape[1:])


@op
def _unswizzle(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    batch = scale.shape[:-5]
    swizzled = scale.reshape(math.prod(batch), *scale.shape[-5:])
    out = scale.new_empty((swizzled.shape[0], rows, columns))
    _run(out, swizzled, True)
    return out.view(*batch, rows, columns)


def swizzle(scale: torch.Tensor) -> torch.Tensor:
    """See `Ops.swizzle`."""
    return _swizzle(scale)


def unswizzle(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """See `Ops.unswizzle`."""
    return _unswizzle(scale, rows, columns)
