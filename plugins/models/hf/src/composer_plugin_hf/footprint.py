"""What a model of this plugin weighs, from its settings or its folder's config.json alone. Thin: no torch.

Legend: D width, H query heads, G key/value heads, W head width, F inner width, E experts, K experts per token,
L layers.

Activations are counted tensor by tensor, as autograd keeps them for the ops of `policy`, `attention` and
`experts.grouped`; a test compares the counts with what torch keeps.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from composer_core import Footprint, ModelSize, RunView
from composer_plugin_hf.config import CausalLMConfig, TinyMoeConfig

MIB = 1 << 20
IMPORTS = {"torch": 193 * MIB, "composer_plugin_hf.presets": 116 * MIB}
"""Measured with torch 2.13.0 (CPU) and transformers 5.23 on Linux; `check --probe` measures them anew."""
TOKENIZER_BYTES = 10 * MIB
"""Trained on the spot, and the texts it keeps encoded."""
COUNTED = ("qwen3_moe", "qwen3", "llama")
"""Architectures whose activations are known; that of DeepSeek-V3 keeps scores of every pair of tokens."""


@frozen
class Shape:
    """A decoder's dimensions."""

    D: int
    H: int
    G: int
    W: int
    L: int
    vocabulary: int
    tied: bool
    F: int
    """Inner width of a dense layer."""
    E: int = 0
    """0: every layer is dense."""
    K: int = 0
    expert_F: int = 0
    dense_layers: int = 0
    """Of the layers of a mixture, those without experts."""
    head_norms: bool = True
    """Whether queries and keys are normalized."""

    @property
    def parameters(self) -> int:
        dense = self.dense_layers if self.E else self.L
        attention = 2 * self.D * self.W * (self.H + self.G) + 2 * self.W * self.head_norms
        experts = self.E * (3 * self.D * self.expert_F + self.D)
        layers = self.L * (attention + 2 * self.D) + dense * 3 * self.D * self.F + (self.L - dense) * experts
        return layers + self.D + self.vocabulary * self.D * (1 if self.tied else 2)

    def size(self, number_bytes: int, padding: int = 1) -> ModelSize:
        """`number_bytes` is the width of one weight, `padding` how much larger experts' blocks are than their rows."""
        attention = (4 if self.head_norms else 2) * (self.H + self.G) * self.W
        inner = padding * self.K * (2 * self.D + 4 * self.expert_F) + self.E if self.E else 4 * self.F
        return ModelSize(
            parameters=self.parameters,
            weight_bytes=self.parameters * number_bytes,
            kv_bytes=self.L * 2 * self.G * self.W * number_bytes,
            trained_bytes=(self.L * (6 * self.D + attention + inner) + 3 * self.D + 2 * self.W) * number_bytes,
            forward_bytes=(6 * self.D + max(attention, inner)) * number_bytes,
            pair_bytes=number_bytes,
            decode_pair_bytes=(3 * self.H + 1) * number_bytes,
            vocabulary=self.vocabulary,
            route_bytes=(self.L - self.dense_layers) * self.K * (1 if self.E <= 256 else 2),
        )


def tiny_moe(config: TinyMoeConfig, run: RunView) -> Footprint:
    """Of `hf/tiny-moe`."""
    shape = Shape(
        D=config.width,
        H=config.heads,
        G=config.kv_heads,
        W=config.head_width,
        L=config.layers,
        vocabulary=config.vocab_size,
        tied=True,
        F=0,
        E=config.expert_count,
        K=config.top_k,
        expert_F=config.expert_width,
    )
    return _footprint(shape.size(4, _padding(run)))


def causal_lm(config: CausalLMConfig, run: RunView) -> Footprint | None:
    """Of `hf/causal-lm`; None when the folder does not tell."""
    folder = Path(config.path)
    number_bytes = 4 if config.dtype == "float32" else 2
    try:
        size = shape_of(json.loads((folder / "config.json").read_text(encoding="utf-8"))).size(
            number_bytes, _padding(run)
        )
        counted = None if config.random_weights else counted_parameters(folder)
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None
    counted = counted or size.parameters
    return _footprint(evolve(size, parameters=counted, weight_bytes=counted * number_bytes))


def shape_of(data: Mapping[str, Any]) -> Shape:
    """The shape that a transformers config.json describes.

    Raises:
        KeyError: it does not, or the architecture is none of `COUNTED`.
    """
    if data["model_type"] not in COUNTED:
        raise KeyError(data["model_type"])
    heads, width = data["num_attention_heads"], data["hidden_size"]
    return Shape(
        D=width,
        H=heads,
        G=data.get("num_key_value_heads") or heads,
        W=data.get("head_dim") or width // heads,
        L=data["num_hidden_layers"],
        vocabulary=data["vocab_size"],
        tied=bool(data.get("tie_word_embeddings", False)),
        F=data["intermediate_size"],
        E=data.get("num_experts") or data.get("num_local_experts") or 0,
        K=data.get("num_experts_per_tok") or 0,
        expert_F=data.get("moe_intermediate_size") or 0,
        dense_layers=len(data.get("mlp_only_layers") or ()),
        head_norms=data["model_type"] != "llama",
    )


def counted_parameters(folder: Path) -> int | None:
    """Numbers in the folder's safetensors files, read from their headers; None without such files."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return total or None


def _padding(run: RunView) -> int:
    """Deterministic runs lay experts' rows out in equal blocks, 2.5 to 4 times as long in all with a fresh router. The
    size is another in each pass, so freed ones are hardly used again: whole runs hold 7 to 20 times the rows
    [measured].
    """
    return 10 if run.config.deterministic else 1


def _footprint(size: ModelSize) -> Footprint:
    files = {"model/": size.weight_bytes, "tokenizer/": size.vocabulary * 70}
    return Footprint(parts={"tokenizer": TOKENIZER_BYTES}, imports=IMPORTS, files=files, model=size)
