"""What the layer holds beside the model's own weights, on a CPU. Thin: no torch."""

from __future__ import annotations

from composer_core import Footprint, RunView
from composer_plugin_mxfp8.config import MXFP8Config

COPIES = 3
"""Sets of weights that forwards read: the trainer's, and two of a sampler that swaps them between steps."""


def footprint(config: MXFP8Config, run: RunView) -> Footprint | None:
    """Values of the experts' weights as plain torch keeps them, in fp32: at most as large as the model.

    None where the model does not tell its size.
    """
    if run.model_size is None:
        return None
    made = COPIES * (1 if config.weight_block == "32x32" else 2) * run.model_size.weight_bytes
    return Footprint(parts={"experts' weights as MXFP8's values": made})
