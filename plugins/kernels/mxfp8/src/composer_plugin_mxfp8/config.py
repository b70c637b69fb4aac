"""Settings of the MXFP8 layer. Thin: read by `check`, so it imports no torch.

A recipe says how numbers are rounded and nothing else; it never changes with the machine. `implementation` says who
computes and never changes a quantized operand.
"""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen
from attrs.validators import in_

RECIPES = ("rceil", "rceil_hp_wgrad", "floor")
IMPLEMENTATIONS = ("auto", "triton", "reference")
WEIGHT_BLOCKS = ("32x32", "1x32")


@frozen
class MXFP8Config:
    """How the experts of a mixture compute in MXFP8; hashable, so that compiled graphs may hold it."""

    recipe: str = field(default="rceil", validator=in_(RECIPES))
    """rceil: scales never clip. rceil_hp_wgrad: the same, and weight gradients of unquantized operands, which keeps
    the layer's input in its own precision. floor: the scales of OCP MX 6.3, which clip up to 12.5 %."""
    implementation: str = field(default="auto", validator=in_(IMPLEMENTATIONS))
    """triton on an NVIDIA GPU, reference (plain torch) anywhere; auto takes the first that runs and logs which. A run
    that asks for triton where it cannot run does not start."""
    weight_block: str = field(default="32x32", validator=in_(WEIGHT_BLOCKS))
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
