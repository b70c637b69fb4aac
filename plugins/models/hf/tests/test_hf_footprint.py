"""What `check` is told of a model is what the model then weighs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from composer_core import BuildContext
from composer_core.footprint import ModelSize
from composer_plugin_hf.config import CausalLMConfig, TinyMoeConfig
from composer_plugin_hf.footprint import causal_lm, tiny_moe
from composer_plugin_hf.policy import HFPolicy
from composer_plugin_hf.presets import build_causal_lm, build_tiny_moe

RUN: Any = SimpleNamespace(config=SimpleNamespace(deterministic=False))
COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}
GQA = {"num_key_value_heads": 2, "head_dim": 16}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONFIGS = {
    "qwen3_moe": Qwen3MoeConfig(**COMMON, **GQA, **ROUTED, num_experts=8, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**COMMON, **GQA),
    "llama": LlamaConfig(**COMMON, **GQA),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weight_bytes(policy: HFPolicy) -> int:
    return sum(tensor.nbytes for tensor in policy.state_dict().values())


def cached_bytes(policy: HFPolicy) -> float:
    """Of one token."""
    cache = policy.new_cache(3, 40)
    return sum(tensor.nbytes for tensor in (*cache.keys, *cache.values)) / (cache.rows * cache.values[0].shape[2])


def routed_bytes(policy: HFPolicy) -> int:
    """Expert ids of one token."""
    shape = policy.routes
    return 0 if shape is None else shape.layers * shape.top_k * shape.dtype.itemsize


def kept_bytes(policy: HFPolicy, rows: int = 4, tokens: int = 96) -> float:
    """What autograd keeps of one token for the backward pass, the weights excepted."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    ids_BT = torch.randint(0, policy.vocab_size, (rows, tokens), generator=torch.Generator().manual_seed(3))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.trunk(ids_BT, torch.full((rows,), tokens))
    found = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)
    return found / rows / tokens


def size_of(told: Any) -> ModelSize:
    assert told is not None
    assert told.model is not None
    size: ModelSize = told.model
    return size


@pytest.mark.parametrize("fields", [{}, {"width": 64, "layers": 3, "expert_width": 96, "kv_heads": 4, "top_k": 4}])
def test_weights_cache_and_activations_of_the_preset_are_counted(tmp_path: Path, fields: dict[str, int]) -> None:
    config = TinyMoeConfig(vocab_size=320, **fields)
    policy, size = build_tiny_moe(config, BuildContext(tmp_path)), size_of(tiny_moe(config, RUN))
    assert size.weight_bytes == weight_bytes(policy)
    assert size.kv_bytes == cached_bytes(policy)
    assert size.trained_bytes == pytest.approx(kept_bytes(policy), rel=0.05)
    assert size.route_bytes == routed_bytes(policy)


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3", "llama"])
def test_a_folders_model_is_counted_from_its_files(tmp_path: Path, name: str) -> None:
    AutoModelForCausalLM.from_config(CONFIGS[name]).save_pretrained(tmp_path)
    config = CausalLMConfig(str(tmp_path))
    policy, size = build_causal_lm(config, BuildContext(tmp_path)), size_of(causal_lm(config, RUN))
    assert size.weight_bytes == weight_bytes(policy)
    assert size.kv_bytes == cached_bytes(policy)
    assert size.trained_bytes == pytest.approx(kept_bytes(policy), rel=0.05)
    assert size.vocabulary == 96
    assert size.route_bytes == routed_bytes(policy)
    half = size_of(causal_lm(CausalLMConfig(str(tmp_path), dtype="bfloat16"), RUN))
    assert half.weight_bytes * 2 == size.weight_bytes


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3", "llama"])
def test_random_weights_are_counted_from_the_configuration(tmp_path: Path, name: str) -> None:
    CONFIGS[name].save_pretrained(tmp_path)
    config = CausalLMConfig(str(tmp_path), random_weights=True)
    policy = build_causal_lm(config, BuildContext(tmp_path))
    assert size_of(causal_lm(config, RUN)).weight_bytes == weight_bytes(policy)


def test_a_folder_that_does_not_tell_is_unknown(tmp_path: Path) -> None:
    assert causal_lm(CausalLMConfig(str(tmp_path / "none")), RUN) is None
    DeepseekV3Config(**COMMON).save_pretrained(tmp_path)
    assert causal_lm(CausalLMConfig(str(tmp_path), random_weights=True), RUN) is None, "its activations are not known"
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert causal_lm(CausalLMConfig(str(tmp_path)), RUN) is None
