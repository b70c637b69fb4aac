"""What the sampler holds: two models, resident keys and values, one forward pass. Thin: no torch."""

from __future__ import annotations

from composer_core import Footprint, RunView
from composer_plugin_torch_sampler.config import ContinuousConfig

MIB = 1 << 20
IMPORTS = {"torch": 193 * MIB}
"""Measured with torch 2.13.0 (CPU) on Linux; `check --probe` measures it anew."""
ROUNDING_TOKENS = 32
"""A cache holds one more column than its window, rounded up to shapes that repeat."""
LOGIT_BYTES = 24
"""Of one logit while a token is drawn: as computed, in fp32, its mass, and the fp64 sum of masses."""


def footprint(config: ContinuousConfig, run: RunView) -> Footprint | None:
    """None where the model does not tell its size."""
    size = run.model_size
    if size is None:
        return None
    window = config.context_tokens + ROUNDING_TOKENS
    prefill = config.prefill_tokens * (size.forward_bytes + window * size.pair_bytes)
    decode = config.slots * (size.forward_bytes + window * size.decode_pair_bytes + size.vocabulary * LOGIT_BYTES)
    return Footprint(
        parts={
            "two copies of the weights": 2 * size.weight_bytes,
            "new weights as they are read": size.weight_bytes,
            "keys and values": config.slots * window * size.kv_bytes,
            "one forward pass": max(prefill, decode),
        },
        imports=IMPORTS,
    )
