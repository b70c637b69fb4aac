"""Settings of this plugin's models. Thin: read by `check`, so it imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Attribute, Factory, field, frozen, validators


def _size(default: int, multiple_of: int = 1) -> Any:
    """A whole number above zero; MXFP8 blocks and vector units want multiples of 32 where it is said."""

    def check(_instance: object, attribute: Attribute[int], value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0 or value % multiple_of:
            raise ValueError(f"{attribute.name} must be a positive multiple of {multiple_of}, found {value!r}")

    return field(default=default, validator=check)


@frozen
class ExpertsConfig:
    """How the experts of a mixture are computed."""

    kernel: str | None = None
    """Component id of a kernel of op "experts"; None is our own: grouped, or row-padded when deterministic."""
    settings: Mapping[str, Any] = field(factory=dict)
    """The chosen kernel's own settings: `[model.experts.settings]`."""

    @settings.validator
    def _kernel_is_chosen(self, _attribute: object, settings: Mapping[str, Any]) -> None:
        if settings and self.kernel is None:
            raise ValueError("settings of a kernel have no effect where none is chosen; give experts.kernel too")


@frozen
class TinyMoeConfig:
    """Shape of the `tiny-moe` preset: a Qwen3-MoE with random weights; the defaults give 1.8 million parameters."""

    vocab_size: int = _size(1024, 32)
    """Ids of the tokenizer trained on the spot, control tokens included; a multiple of 32."""
    width: int = _size(128, 32)
    """Model width; a multiple of 32."""
    layers: int = _size(2)
    """Decoder layers; two are the fewest that can copy by induction."""
    heads: int = _size(4)
    """Query heads."""
    kv_heads: int = _size(2)
    """Key and value heads; divides `heads`. Decoding on a CPU is bound by reading these."""
    head_width: int = _size(32, 32)
    """Width of one head; a multiple of 32."""
    expert_count: int = _size(32)
    """Experts of each layer."""
    top_k: int = _size(2)
    """Experts that each token visits; at most `expert_count`."""
    expert_width: int = _size(64, 32)
    """Inner width of one expert; a multiple of 32."""
    context_tokens: int = _size(2048)
    """Positions that the configuration of a checkpoint declares."""
    rope_theta: float = 10_000.0
    """Base of the rotary position embedding."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""
    experts: ExpertsConfig = Factory(ExpertsConfig)


@frozen
class CausalLMConfig:
    """A transformers causal language model from a local folder."""

    path: str = ""
    """Folder with config.json, weights and tokenizer files; nothing is downloaded."""
    dtype: str = field(default="float32", validator=validators.in_(("float32", "bfloat16")))
    """Weights are held in this dtype."""
    random_weights: bool = False
    """Take the configuration only and draw the weights from the run's seed."""
    experts: ExpertsConfig = Factory(ExpertsConfig)
