"""Hook module of `torch-sampler`: one sampler, `torch-sampler/continuous`."""

from __future__ import annotations

from collections.abc import Iterator

from composer_core import SamplerSpec, hookimpl
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
