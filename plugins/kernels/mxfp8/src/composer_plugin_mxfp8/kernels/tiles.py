"""What the matrix kernels do with a tile in registers, and how they find their tile.

Products run on bf16, which holds every E4M3 value times 2^-124 to 2^119 exactly. Triton's interpreter multiplies bit
patterns where it is given bf16, so under it every operand is fp32, which holds all bf16.

Legend: M rows, K columns of a tile; a scale is an E8M0 byte; E experts, `ends` the row behind each expert's last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from composer_plugin_mxfp8.kernels.numerics import bf16_bits, decode, power
from composer_plugin_mxfp8.support import interpreting

INTERPRETED = tl.constexpr(interpreting())


@triton.jit
def wide(x):
    """A bf16 tile as an operand of `tl.dot`: itself on a GPU, fp32 when interpreted."""
    if INTERPRETED:
        x = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x


@triton.jit
def result(x, BF16: tl.constexpr):
    """fp32 as it is stored: itself, or bf16 to nearest with ties to even."""
    if BF16:
        x = bf16_bits(x, False).to(tl.bfloat16, bitcast=True) if INTERPRETED else x.to(tl.bfloat16)
    return x


@triton.jit
def scales(row_ptr, block, limit, COUNT: tl.constexpr, WHOLE: tl.constexpr):
    """COUNT (2 or 4) scale bytes of each row from `block` on, as one word of each row, [M]; 0 from `limit` [M] on.

    WHOLE says that every row holds a multiple of COUNT: then a word is one load. A load of one word a row lets every
    thread read what its part of the tile needs. A tile of bytes would be spread over the threads and exchanged through
    shared memory, and the operand with it; bytes by themselves keep the cache busy, since each row is another line.
    """
    if WHOLE and COUNT == 2:
        word = tl.load((row_ptr + block).to(tl.pointer_type(tl.uint16)), mask=block < limit, other=0).to(tl.uint32)
    elif WHOLE:
        word = tl.load((row_ptr + block).to(tl.pointer_type(tl.uint32)), mask=block < limit, other=0)
    else:
        word = tl.load(row_ptr + block, mask=block < limit, other=0).to(tl.uint32)
        for i in tl.static_range(1, COUNT):
            byte = tl.load(row_ptr + block + i, mask=block + i < limit, other=0)
            word |= byte.to(tl.uint32) << (8 * i)
    return word


@triton.jit
def scaled(x, word, M: tl.constexpr, K: tl.constexpr):
    """An E4M3 tile times its `scales`, a byte of `word` for each 32 of K; exact in bf16 for bytes 3 to 246.

    By way of fp32: from E4M3 to bf16 there are only conversions of one element in the slowest unit of a Hopper.
    """
    values = decode(x.to(tl.uint8, bitcast=True), not INTERPRETED).reshape(M, K // 32, 32)
    byte = tl.join(word, word >> 8)
    if K == 128:
        byte = tl.join(tl.join(word, word >> 16), tl.join(word >> 8, word >> 24)).reshape(M, 4)
    product = (values * power(byte & 0xFF)[:, :, None]).reshape(M, K)
    return product if INTERPRETED else product.to(tl.bfloat16)


@triton.jit
def owner(ends_ptr, row, E, EXPERTS: tl.constexpr):
    """The expert that `row` belongs to, E behind the last; EXPERTS is a power of two not below E."""
    expert = tl.arange(0, EXPERTS)
    ends = tl.load(ends_ptr + expert, mask=expert < E, other=2147483647)
    return tl.sum((ends <= row).to(tl.int32))


@triton.jit
def place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile, in an order where GROUP rows of tiles share what they read in the L2 cache."""
    first = tile // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    within = tile % (GROUP * tiles_n)
    return first + within % height, within // height
