"""`composer_core.noise.uniform` over int64 tensors, bit for bit (SplitMix64 in wrapping int64 arithmetic)."""

from __future__ import annotations

import torch

from composer_core.noise import GOLDEN, MIX


def signed(value: int) -> int:
    """The two's complement of a 64-bit number, which int64 tensors hold."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(value: torch.Tensor, count: int) -> torch.Tensor:
    """Logical shift: torch's >> on int64 is arithmetic."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def uniform(keys_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
    """fp32 [N] in [0, 1) from int64 keys (two's complement of the 64-bit key) and int64 positions."""
    state = keys_N + (positions_N + 1) * signed(GOLDEN)
    state = (state ^ _shift_right(state, 30)) * signed(MIX[0])
    state = (state ^ _shift_right(state, 27)) * signed(MIX[1])
    state = state ^ _shift_right(state, 31)
    return _shift_right(state, 40).float() / float(1 << 24)
