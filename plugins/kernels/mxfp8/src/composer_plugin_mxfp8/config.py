"""Settings of the MXFP8 layer. Thin: read by `check`, so it imports no torch.

A recipe says how numbers are rounded and nothing else; it never changes with the machine. `implementation` says who
computes and never changes a quantized operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from attrs import field, frozen

RECIPES = ("rceil", "rceil_hp_wgrad", "floor")
IMPLEMENTATIONS = ("auto", "triton", "reference")
WEIGHT_BLOCKS = ("32x32", "1x32")


def _one_of(options: tuple[str, ...]) -> Callable[[object, Any, str], None]:
    """attrs' own `in_` prints its machinery with what is wrong, to whoever makes this class without a run file."""

    def check(_config: object, attribute: Any, value: str) -> None:
        if value not in options:
            raise ValueError(f"{attribute.name} is one of {', '.join(map(repr, options))}, found {value!r}")

    return check


@frozen
class MXFP8Config:
    """How the experts of a mixture compute in MXFP8; hashable, so that compiled graphs may hold it."""

    recipe: str = field(default="rceil", validator=_one_of(RECIPES))
    """rceil: scales never clip. rceil_hp_wgrad: the same, and weight gradients of unquantized operands, which keeps
    the layer's input in its own precision. floor: the scales of OCP MX 6.3, which clip up to 12.5 %."""
    implementation: str = field(default="auto", validator=_one_of(IMPLEMENTATIONS))
    """triton on an NVIDIA GPU, reference (plain torch) anywhere; auto takes the first that runs and logs which. A run
    that asks for triton where it cannot run does not start."""
    weight_block: str = field(default="32x32", validator=_one_of(WEIGHT_BLOCKS))
    """Weights that share a scale. 32x32: one copy serves forward and backward, which then see the same weights. 1x32:
    scales as fine as those of activations, and a second copy along the other axis for the backward."""

    @property
    def scaling(self) -> Literal["rceil", "floor"]:
        """The rule of `formats.scale_bytes`."""
        return "floor" if self.recipe == "floor" else "rceil"

    @property
    def exact_wgrad(self) -> bool:
        """Whether weight gradients are made of unquantized operands."""
        return self.recipe == "rceil_hp_wgrad"
