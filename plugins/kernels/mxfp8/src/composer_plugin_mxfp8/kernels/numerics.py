"""Conversions in registers, bit for bit those of `formats`, on a GPU and under Triton's interpreter.

The interpreter casts to E4M3 and bf16 wrongly (carries lost, no saturation, truncation) and maps E4M3's NaN to 480,
so each conversion exists twice: on integers, right everywhere, and by the instruction of GPUs that have it. `NATIVE`
picks, and on a GPU a test shows that the two give the same bits. Largest magnitudes are compared as integers, where NaN
and Inf are simply the largest, and scales are made of exponent bits: no rounding or flush of subnormals touches them.

bf16 tensors reach kernels as int16 and E4M3 as uint8 (`bits`): kernels see bytes, whatever Triton makes of a type.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.support import interpreting

NATIVE_CAPABILITY = (8, 9)
"""First GPUs with E4M3 conversions in hardware."""


def native(x: torch.Tensor) -> bool:
    """Whether kernels on the tensor's device convert by instructions."""
    return not interpreting() and torch.cuda.get_device_capability(x.device) >= NATIVE_CAPABILITY


def bits(x: torch.Tensor) -> torch.Tensor:
    """The tensor as kernels take it: bf16 as int16, one-byte floats as uint8, all others as they are."""
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16)
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


@triton.jit
def widen(raw):
    """fp32 of a loaded tile: int16 holds bf16 bits, fp32 is itself."""
    if raw.dtype == tl.int16:
        raw = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return raw


@triton.jit
def bf16_bits(x, NATIVE: tl.constexpr):
    """int16 bits of bf16, nearest even; NaN is the quiet one."""
    if NATIVE:
        out = x.to(tl.bfloat16).to(tl.int16, bitcast=True)
    else:
        raw = x.to(tl.int32, bitcast=True)
        rounded = (raw + 0x7FFF + ((raw >> 16) & 1)) >> 16
        out = tl.where((raw & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded).to(tl.int16)
    return out


@triton.jit
def narrowed(x, like: tl.constexpr, NATIVE: tl.constexpr):
    """fp32 as it is stored in a tensor of type `like`: int16 stands for bf16."""
    if like == tl.int16:
        x = bf16_bits(x, NATIVE)
    return x


@triton.jit
def through(x, like: tl.constexpr, NATIVE: tl.constexpr):
    """fp32 rounded to the type `like` and back."""
    return widen(narrowed(x, like, NATIVE))


@triton.jit
def encode(x, NATIVE: tl.constexpr):
    """uint8 bits of E4M3: nearest even, saturating; every NaN is 0x7F."""
    if NATIVE:
        out = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        raw = x.to(tl.int32, bitcast=True)
        size = raw & 0x7FFFFFFF
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
        small = tl.minimum(size, 0x3C800000).to(tl.float32, bitcast=True)  # below 2^-6 codes are multiples of 2^-9
        tiny = (small + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        code = tl.where(size < 0x3C800000, tiny, tl.minimum(normal, 0x7E))
        code = tl.where(size > 0x7F800000, 0x7F, code | ((raw >> 24) & 0x80))
        out = code.to(tl.uint8)
    return out


@triton.jit
def decode(code, NATIVE: tl.constexpr):
    """fp32 of E4M3 bits."""
    if NATIVE:
        out = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        wide = code.to(tl.int32)
        value = ((wide & 0x7F) << 20).to(tl.float32, bitcast=True) * 1329227995784915872903807060280344576.0  # 2^120
        raw = value.to(tl.int32, bitcast=True) | ((wide & 0x80) << 24)
        out = tl.where((wide & 0x7F) == 0x7F, 0x7FC00000, raw).to(tl.float32, bitcast=True)
    return out


@triton.jit
def magnitude(x):
    """|x| as an integer: ordered like the values, with Inf and then NaN above all."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_byte(largest, RCEIL: tl.constexpr):
    """`formats.scale_bytes` of blocks whose largest magnitude is given as bits; int32.

    Adding 0x1FFFFF carries into the exponent where the fraction is above 1.75.
    """
    byte = ((largest + 0x1FFFFF if RCEIL else largest) >> 23) - 8
    return tl.where(largest >= 0x7F800000, 255, tl.maximum(byte, 0))


@triton.jit
def power(byte):
    """`formats.decode_e8m0`: fp32 of E8M0 bytes."""
    wide = byte.to(tl.int32)
    raw = tl.where(wide == 0, 0x00400000, wide << 23)
    return tl.where(wide == 255, 0x7FC00000, raw).to(tl.float32, bitcast=True)


@triton.jit
def inverse(byte):
    """`formats.inverse_scale`, with NaN for 255: a broken block becomes NaN by the multiplication."""
    return tl.where(byte == 255, 0x7FC00000, (254 - byte) << 23).to(tl.float32, bitcast=True)
