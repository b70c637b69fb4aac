"""MXFP8 in plain torch: E4M3 values, one E8M0 scale for each block of 32. The oracle that every kernel is held to.

Source: OCP Microscaling Formats (MX) specification 1.0; each rule below names its section. What that text leaves open
is decided here, once:

- a zero block has scale byte 0 and zero data;
- NaN or Inf anywhere in a block makes the whole block NaN: scale byte 255, data 0x7F;
- values are rounded to nearest, ties to even, and saturate at 448 (the "floor" rule relies on it, "rceil" never clips);
- fp32 subnormals are values like all others, and no result depends on a flush of them.

Scales are computed on the bits of fp32 with integers, so that every device and every interpreter gives the same byte.
Scales are uint8 inside the package and `float8_e8m0fnu` for whoever asks `MX` for them: torch rounds a cast to that
type to nearest, which neither rule allows, so that cast stands nowhere here.

Legend: M rows, K columns (both of any leading shape `...`), E8M0 byte b = 2^(b - 127), 255 = NaN.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

BLOCK = 32
"""Elements that share a scale (OCP MX 5.1, k of all concrete formats)."""
LARGEST = 448.0
"""Largest E4M3 value (OCP MX 5.3.1)."""
NAN_SCALE = 255
"""E8M0's only NaN (OCP MX 5.4.1); there is neither zero nor infinity."""
NAN_DATA = 0x7F
"""E4M3's positive NaN; there is no infinity (OCP MX 5.3.1)."""

Scaling = Literal["rceil", "floor"]
"""`rceil`: the smallest power of two that keeps the block's largest value within 448; never clips. `floor`: OCP MX 6.3,
2^(floor(log2 amax) - 8), which clips up to 12.5% off the largest values of a block."""
Layout = Literal["plain", "swizzled"]
Shape = tuple[int, int]

ROWWISE: Shape = (1, BLOCK)
COLUMNWISE: Shape = (BLOCK, 1)
SQUARE: Shape = (BLOCK, BLOCK)
TILE: Shape = (128, 4)
"""Scales of one tile of the tcgen05 layout: 128 rows, and the four blocks of 128 columns."""


class MX(NamedTuple):
    """A tensor in MXFP8. Data is never transposed in memory, whichever way its blocks run."""

    data: torch.Tensor
    """float8_e4m3fn [..., M, K]."""
    scale: torch.Tensor
    """uint8 [..., M / block[0], K / block[1]]; swizzled: [..., M / 128, K / 128, 32, 4, 4] (see `swizzle`)."""
    block: Shape = ROWWISE
    """Rows and columns that share a scale: (1, 32), (32, 1) or (32, 32)."""
    layout: Layout = "plain"
    """How `scale` lies in memory."""

    @property
    def e8m0(self) -> torch.Tensor:
        """The scales as the type that other libraries expect; the same bytes."""
        return self.scale.view(torch.float8_e8m0fnu)


def quantize(x: torch.Tensor, block: Shape = ROWWISE, scaling: Scaling = "rceil") -> MX:
    """[..., M, K] of any float type to MXFP8 (OCP MX 6.3, steps 1 to 3).

    Raises:
        ValueError: a dimension is not a multiple of its block.
    """
    tiles = _tiles(x.float(), block)
    scale = scale_bytes(tiles.abs().amax((-3, -1)), scaling)
    data = encode_e4m3(tiles * inverse_scale(scale)[..., :, None, :, None])
    broken = (scale == NAN_SCALE)[..., :, None, :, None]
    data = data.view(torch.uint8).masked_fill_(broken, NAN_DATA).view(torch.float8_e4m3fn)
    return MX(data.view(x.shape), scale, block)


def dequantize(mx: MX, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Value = data x scale (OCP MX 5.2), multiplied in fp32 and rounded once to `dtype`."""
    scale = mx.scale
    if mx.layout == "swizzled":
        rows, columns = mx.data.shape[-2:]
        scale = unswizzle(scale, rows // mx.block[0], columns // mx.block[1])
    values = _tiles(mx.data, mx.block).float() * decode_e8m0(scale)[..., :, None, :, None]
    return values.view(mx.data.shape).to(dtype)


def encode_e4m3(x: torch.Tensor) -> torch.Tensor:
    """fp32 to E4M3, nearest even, saturating (OCP MX 5.3.1 and 6.3); NaN stays NaN.

    The clamp is ours because torch before 2.13 turns what is too large into NaN.
    """
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def scale_bytes(amax: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    """E8M0 bytes of blocks whose largest magnitude is `amax` (fp32); Inf and NaN give 255.

    With amax = 1.m x 2^e and 448 = 1.75 x 2^8: floor is e - 8 (OCP MX 6.3), rceil is one more where 1.m > 1.75, which
    is ceil(log2(amax / 448)) exactly (NVIDIA, arXiv 2506.08027). What falls below 2^-127 becomes byte 0.
    """
    bits = amax.view(torch.int32) & 0x7FFFFFFF
    byte = (bits >> 23) - 8
    if scaling == "rceil":
        byte = byte + ((bits & 0x7FFFFF) > 0x600000)
    return torch.where(bits >= 0x7F800000, NAN_SCALE, byte.clamp(min=0)).to(torch.uint8)


def decode_e8m0(scale: torch.Tensor) -> torch.Tensor:
    """fp32 2^(byte - 127); byte 0 is the subnormal 2^-127 and 255 is NaN (OCP MX 5.4.1)."""
    wide = scale.to(torch.int32)
    bits = torch.where(wide == 0, 0x00400000, wide << 23)
    return torch.where(wide == NAN_SCALE, 0x7FC00000, bits).view(torch.float32)


def inverse_scale(scale: torch.Tensor) -> torch.Tensor:
    """fp32 2^(127 - byte) for the bytes that `scale_bytes` makes (0 to 247, all exact); meaningless for 255."""
    return ((254 - scale.to(torch.int32)).clamp(min=1) << 23).view(torch.float32)


def swizzle(scale: torch.Tensor) -> torch.Tensor:
    """[..., M, K / 32] to what tcgen05 reads: [..., ceil(M / 128), ceil(K / 128), 32, 4, 4], contiguous.

    Entry [i, j, r, q, c] is the scale of row 128 i + 32 q + r and of block 4 j + c (PTX ISA, tcgen05.mma scale factor
    layout; cuBLAS, "1D block scaling factors layout"). What lies past the edge is 0, never stale memory.
    """
    rows, columns = scale.shape[-2:]
    padded = torch.nn.functional.pad(scale, (0, -columns % TILE[1], 0, -rows % TILE[0]))
    tall, wide = padded.shape[-2] // TILE[0], padded.shape[-1] // TILE[1]
    tiles = padded.reshape(*scale.shape[:-2], tall, 4, 32, wide, 4)
    return tiles.movedim(-2, -4).transpose(-2, -3).contiguous()


def unswizzle(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The inverse of `swizzle`: [..., rows, columns] of the plain layout."""
    tall, wide = scale.shape[-5:-3]
    padded = scale.transpose(-2, -3).movedim(-4, -2).reshape(*scale.shape[:-5], tall * TILE[0], wide * TILE[1])
    return padded[..., :rows, :columns].contiguous()


def _tiles(x: torch.Tensor, block: Shape) -> torch.Tensor:
    """View [..., M, K] as [..., M / b0, b0, K / b1, b1]."""
    *batch, rows, columns = x.shape
    if rows % block[0] or columns % block[1]:
        raise ValueError(f"MXFP8 blocks of {block[0]}x{block[1]} do not divide [{rows}, {columns}]; pad the tensor")
    return x.reshape(*batch, rows // block[0], block[0], columns // block[1], block[1])
