"""Counter-based noise: a number is a pure function of (key, position).

There is no generator whose state could be lost or shared: a re-issued attempt draws the same numbers, in any order
and on any machine (RL.md section 3). The mixing function is SplitMix64's finalizer (Steele, Lea, Flood 2014).
`composer_core.tensors.noise` is the same function over int64 tensors; a test holds them equal.
"""

from __future__ import annotations

import hashlib

__all__ = [
    "bits",
    "key_of",
    "shuffled",
    "uniform",
]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def key_of(*parts: object) -> int:
    """A 64-bit key from any printable parts, such as (run seed, stage, step)."""
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def bits(key: int, position: int) -> int:
    """64 mixed bits."""
    state = (key + (position + 1) * GOLDEN) & MASK
    state = ((state ^ (state >> 30)) * MIX[0]) & MASK
    state = ((state ^ (state >> 27)) * MIX[1]) & MASK
    return state ^ (state >> 31)


def uniform(key: int, position: int) -> float:
    """A multiple of 2^-24 in [0, 1), exact in fp32."""
    return (bits(key, position) >> 40) / (1 << 24)


def shuffled(items: list[int], key: int) -> list[int]:
    """A permutation of `items` that depends on `key` alone."""
    return sorted(items, key=lambda item: (bits(key, item), item))
