"""Weights that samplers are given in 16 bits, and the fp32 masters that the optimizer moves.

A step at a small learning rate is far below the last place of a bfloat16, so the masters gather it. Every forward pass
of the trainer uses the rounded numbers, in the policy's own arithmetic: they are what a sampler loads, so both compute
the same policy and parity holds as it does without rounding, and what is published is half as large. The gradient at
the rounded weights is applied to the masters.

The masters take the parameters' place while an optimizer steps or a checkpoint is written; optimizer and checkpoints
know nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch


class Masters:
    """Of the fp32 parameters of one policy; without effect where `published` is "own"."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], published: str) -> None:
        rounds = published == "bf16"
        self._parameters = [p for p in parameters if rounds and p.dtype is torch.float32]
        self._kept: list[torch.Tensor] = []

    @torch.no_grad()
    def take(self) -> None:
        """The parameters are masters: keep them, and put what is published in their place."""
        self._kept = [parameter.detach().clone() for parameter in self._parameters]
        self._round()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the parameters are the masters; what becomes of them there is kept."""
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._kept, strict=True):
                parameter.copy_(master)
        yield
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._kept, strict=True):
                master.copy_(parameter)
            self._round()

    def published(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A state dict as samplers are given it; buffers and frozen parameters keep their own numbers."""
        rounded = {parameter.data_ptr() for parameter in self._parameters}
        return {name: tensor.bfloat16() if tensor.data_ptr() in rounded else tensor for name, tensor in state.items()}

    def _round(self) -> None:
        for parameter in self._parameters:
            parameter.copy_(parameter.bfloat16())
