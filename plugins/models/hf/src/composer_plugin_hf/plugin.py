"""Hook module of `hf`: models, their expert kernels, and renderers."""

from __future__ import annotations

from collections.abc import Iterator

from composer_core import KernelSpec, ModelSpec, RendererSpec, hookimpl
from composer_plugin_hf.config import CausalLMConfig, TinyMoeConfig
from composer_plugin_hf.renderers.config import HERMES_TOKENS, XML_TOKENS, HermesConfig, XmlConfig

COMPOSER_API = 1
TOKENIZER = "composer_plugin_hf.tokenizer:build_tokenizer"
CAPABILITIES = {"model.experts", "model.routes", "model.cache"}


@hookimpl
def composer_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="tiny-moe",
        summary="Qwen3-MoE of about 2 million parameters with random weights and a tokenizer trained on the spot.",
        tokenizer=TOKENIZER,
        policy="composer_plugin_hf.presets:build_tiny_moe",
        footprint="composer_plugin_hf.footprint:tiny_moe",
        export="composer_plugin_hf.checkpoints:export",
        config=TinyMoeConfig,
        capabilities=CAPABILITIES,
    )
    yield ModelSpec(
        name="causal-lm",
        summary="A transformers causal language model from a local folder.",
        tokenizer=TOKENIZER,
        policy="composer_plugin_hf.presets:build_causal_lm",
        footprint="composer_plugin_hf.footprint:causal_lm",
        export="composer_plugin_hf.checkpoints:export",
        config=CausalLMConfig,
        capabilities=CAPABILITIES,
    )


@hookimpl
def composer_kernels() -> Iterator[KernelSpec]:
    yield KernelSpec(
        name="sorted-experts",
        summary="Pairs sorted by expert, one grouped product per projection.",
        op="experts",
        factory="composer_plugin_hf.experts:build_grouped",
        reference="composer_plugin_hf.experts:build_dense",
        tolerance=1e-5,
    )
    yield KernelSpec(
        name="padded-experts",
        summary="Equal blocks of rows per expert: a row's value never depends on the batch.",
        op="experts",
        factory="composer_plugin_hf.experts:build_padded",
        reference="composer_plugin_hf.experts:build_dense",
        tolerance=1e-5,
    )


@hookimpl
def composer_renderers() -> Iterator[RendererSpec]:
    yield RendererSpec(
        name="xml",
        summary="Control tags that are single tokens; calls are parsed over ids.",
        factory="composer_plugin_hf.renderers.xml:build_xml",
        config=XmlConfig,
        special_tokens=XML_TOKENS,
    )
    yield RendererSpec(
        name="hermes",
        summary="ChatML turns with JSON calls, or the tokenizer's own chat template.",
        factory="composer_plugin_hf.renderers.hermes:build_hermes",
        config=HermesConfig,
        special_tokens=HERMES_TOKENS,
    )
