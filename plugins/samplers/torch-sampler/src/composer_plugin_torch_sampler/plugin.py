"""Hook module of `torch-sampler`: one sampler, `torch-sampler/continuous`, and what `check` says of its window."""

from __future__ import annotations

from collections.abc import Iterator

from composer_core import Problem, RunView, SamplerSpec, hookimpl
from composer_plugin_torch_sampler.config import ContinuousConfig

COMPOSER_API = 1


@hookimpl
def composer_samplers() -> Iterator[SamplerSpec]:
    yield SamplerSpec(
        name="continuous",
        summary="Continuous batching over a policy model in one process.",
        factory="composer_plugin_torch_sampler.sampler:build",
        config=ContinuousConfig,
        footprint="composer_plugin_torch_sampler.footprint:footprint",
        capabilities={
            "sampler.logprobs",
            "sampler.versions",
            "sampler.swaps",
            "sampler.routes",
            "sampler.deterministic",
        },
    )


@hookimpl
def composer_check(run: RunView) -> Iterator[Problem]:
    """A window that is shorter than the run's own would end episodes before their limit does."""
    promised = run.config.limits.get("context_tokens", 0)
    for id, config in run.settings.get("samplers", ()):
        if id == "torch-sampler/continuous" and config.context_tokens < promised:
            yield Problem(
                where="sampler.context_tokens",
                message=f"{config.context_tokens:,} tokens, while limits.context_tokens promises {promised:,}",
                fix=f"sampler.context_tokens = {promised}",
            )
