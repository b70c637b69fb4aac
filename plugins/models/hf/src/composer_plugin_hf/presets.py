"""Policy factories: the `tiny-moe` preset with random weights, and any supported model from a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from composer_core import BuildContext
from composer_core.errors import ConfigError
from composer_core.tensors import one_thread
from composer_plugin_hf import architectures
from composer_plugin_hf.config import CausalLMConfig, TinyMoeConfig
from composer_plugin_hf.policy import HFPolicy


def qwen3_moe_config(config: TinyMoeConfig) -> Qwen3MoeConfig:
    """The preset's shape in transformers' terms.

    Raises:
        ConfigError: the numbers contradict each other.
    """
    if config.heads % config.kv_heads:
        raise ConfigError("kv_heads must divide heads", found=f"{config.kv_heads} and {config.heads}")
    if config.top_k > config.expert_count:
        raise ConfigError("top_k is above expert_count", found=f"{config.top_k} and {config.expert_count}")
    return Qwen3MoeConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.width,
        intermediate_size=config.expert_width,
        moe_intermediate_size=config.expert_width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_width,
        num_experts=config.expert_count,
        num_experts_per_tok=config.top_k,
        norm_topk_prob=True,
        max_position_embeddings=config.context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        initializer_range=config.init_std,
        tie_word_embeddings=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=True,
    )


def build_tiny_moe(config: TinyMoeConfig, build: BuildContext) -> HFPolicy:
    """A Qwen3-MoE with weights drawn from the run's seed; the global generator is left as it was."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(build.seed)
        causal_lm = Qwen3MoeForCausalLM(qwen3_moe_config(config))
    return HFPolicy(causal_lm, _kernel(build, config.experts.kernel), build.deterministic)


def build_causal_lm(config: CausalLMConfig, build: BuildContext) -> HFPolicy:
    """A model from `config.path`; refused by name when its architecture cannot be driven."""
    folder = Path(config.path)
    if not config.path or not (folder / "config.json").is_file():
        raise ConfigError(
            "hf/causal-lm needs a folder that holds config.json",
            where="model.path",
            found=repr(config.path),
            fix="give the folder of a downloaded or saved transformers model",
        )
    dtype = getattr(torch, config.dtype)
    shape = AutoConfig.from_pretrained(folder, local_files_only=True)
    architectures.check(shape)
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(build.seed)
        if config.random_weights:
            causal_lm = AutoModelForCausalLM.from_config(shape, dtype=dtype)
        else:
            causal_lm = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return HFPolicy(causal_lm, _kernel(build, config.experts.kernel), build.deterministic)


def _kernel(build: BuildContext, wanted: str | None) -> Any:
    """The chosen kernel, or None for this plugin's own."""
    return None if wanted is None else build.get("kernels")
