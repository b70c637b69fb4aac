"""Which transformers architectures can be driven, what each stores and where its routers are; the rest is refused.

Support is a claim that tests hold: incremental decoding over ragged slots equals the full forward, and replayed routes
are honored. An architecture is listed here only with such a test.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from composer_core.errors import ConfigError
from composer_plugin_hf.cache import Stored
from composer_plugin_hf.routing import ROUTERS

SUPPORTED = tuple(ROUTERS)


@frozen
class Found:
    """The parts of a model that the adapter touches."""

    stored: list[Stored]
    attentions: list[Any]
    gates: list[Any]
    """Router modules of the MoE layers, in layer order; each returns (logits, weights, ids)."""
    experts: list[Any]


def refusal(config: Any) -> str | None:
    """Why a model of this configuration cannot be driven, or None."""
    if config.model_type not in SUPPORTED:
        return f"its cache and routing are not known here; supported are {', '.join(SUPPORTED)}"
    windowed = [kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"]
    if windowed or getattr(config, "use_sliding_window", False):
        return "sliding-window layers need a cache that forgets, which slots do not"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        return f"rotary embedding {rope!r} depends on the longest row of the batch"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"its activation is {config.hidden_act!r}, and the op 'experts' is defined for silu"
    return None


def check(config: Any) -> None:
    """Raises ConfigError with the architecture's name and the reason."""
    reason = refusal(config)
    if reason is not None:
        raise ConfigError(
            f"architecture {config.model_type!r} cannot be driven: {reason}",
            who="plugin hf",
            expected="a full-attention decoder of a supported architecture",
            fix="choose another model, or add the architecture with its contract test",
        )


def inspect(causal_lm: Any) -> Found:
    """Find the parts of a transformers causal language model.

    Raises:
        ConfigError: the architecture cannot be driven.
    """
    config = causal_lm.config
    check(config)
    layers = list(causal_lm.model.layers)
    routed = [layer.mlp for layer in layers if hasattr(layer.mlp, "gate") and hasattr(layer.mlp, "experts")]
    return Found(
        stored=[_stored(config)] * len(layers),
        attentions=[layer.self_attn for layer in layers],
        gates=[block.gate for block in routed],
        experts=[block.experts for block in routed],
    )


def _stored(config: Any) -> Stored:
    if config.model_type == "deepseek_v3":
        return Stored(1, config.kv_lora_rank, 1, config.qk_rope_head_dim)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Stored(config.num_key_value_heads, width, config.num_key_value_heads, width)
