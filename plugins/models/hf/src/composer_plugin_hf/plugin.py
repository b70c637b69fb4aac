"""Hook module of `hf`: models, their expert kernels, and renderers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from composer_core import KernelSpec, ModelSpec, Problem, RendererSpec, RunView, hookimpl
from composer_plugin_hf.config import CausalLMConfig, TinyMoeConfig
from composer_plugin_hf.renderers.config import (
    GLM_TOKENS,
    HERMES_TOKENS,
    KIMI_TOKENS,
    QWEN3_CODER_TOKENS,
    XML_TOKENS,
    GlmConfig,
    HermesConfig,
    KimiConfig,
    Qwen3CoderConfig,
    XmlConfig,
)

COMPOSER_API = 1
TOKENIZER = "composer_plugin_hf.tokenizer:build_tokenizer"
MIXTURES = ("qwen3_moe", "deepseek_v3", "glm4_moe")
"""Architectures with routers (`routing.ROUTERS`, which needs torch)."""
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
    yield RendererSpec(
        name="qwen3_coder",
        summary="ChatML turns with function and parameter blocks, as Qwen3-Coder and Qwen3.5 write them.",
        factory="composer_plugin_hf.renderers.qwen3_coder:build_qwen3_coder",
        config=Qwen3CoderConfig,
        special_tokens=QWEN3_CODER_TOKENS,
    )
    yield RendererSpec(
        name="kimi",
        summary="Sections of JSON calls that count, as Kimi K2 writes them.",
        factory="composer_plugin_hf.renderers.kimi:build_kimi",
        config=KimiConfig,
        special_tokens=KIMI_TOKENS,
    )
    yield RendererSpec(
        name="glm",
        summary="Keys and values between control tokens, as GLM-4.5 and GLM-4.6 write them.",
        factory="composer_plugin_hf.renderers.glm:build_glm",
        config=GlmConfig,
        special_tokens=GLM_TOKENS,
    )


@hookimpl
def composer_check(run: RunView) -> Iterator[Problem]:
    """Refuse router replay where the model of the folder is dense."""
    model = run.config.model
    replayed = [c.stage.name for c in run.config.stages if getattr(c.stage, "router_replay", False)]
    if model.use != "hf/causal-lm" or not replayed:
        return
    try:
        folder = Path(model.settings.get("path", ""))
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # no folder of a model at all, which is said where it is opened
    for name in replayed if found not in MIXTURES else ():
        yield Problem(
            where=f"stages.{name}.router_replay",
            message=f"a dense model has no experts whose choice could be replayed; model.path holds a {found!r}",
            fix=f"leave router_replay out, or choose a mixture of experts ({', '.join(MIXTURES)})",
        )
