"""Hook module of `traces`: the sampler that plays recorded episodes."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import min_len

from composer_core import SamplerSpec, hookimpl

COMPOSER_API = 1


@frozen(kw_only=True)
class RecordedConfig:
    """Settings of `recorded`."""

    path: str = field(validator=min_len(1))
    """File that `composer-run import` has written."""
    token_ids: bool = False
    """Give the recorded token ids instead of rendering turns; right for the same tokenizer and renderer only."""


@hookimpl
def composer_samplers() -> Iterator[SamplerSpec]:
    yield SamplerSpec(
        name="recorded",
        summary="Plays imported episodes of the run's tasks, for an sft stage to imitate.",
        factory="composer_plugin_traces.recorded:build",
        config=RecordedConfig,
        capabilities={"sampler.deterministic"},
    )
