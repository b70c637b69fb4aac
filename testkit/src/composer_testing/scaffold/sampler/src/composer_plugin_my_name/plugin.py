"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Iterable

from composer_core import SamplerSpec, hookimpl

COMPOSER_API = 1


@hookimpl
def composer_samplers() -> Iterable[SamplerSpec]:
    """A run asks for capabilities: rl needs the first two, staleness the third, `deterministic = true` the last."""
    yield SamplerSpec(
        name="my-name",
        factory="composer_plugin_my_name.sampler:MyNameSampler",
        capabilities={"sampler.logprobs", "sampler.versions", "sampler.swaps", "sampler.deterministic"},
        summary="each id depends on the last one alone",
    )
