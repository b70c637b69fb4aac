"""Hook module of `remote-sampler`: samplers behind inference servers, and what they cannot be used for."""

from __future__ import annotations

from collections.abc import Iterator

from composer_core import Problem, RunView, SamplerSpec, hookimpl
from composer_core.footprint import Footprint
from composer_plugin_remote_sampler.config import IdsConfig, OpenAiConfig, SglangConfig, TextConfig

COMPOSER_API = 1
OFFERS = {"sampler.logprobs", "sampler.versions"}
TEXT = "remote-sampler/text"
FOOTPRINT = Footprint(imports={"aiohttp": 13 << 20})


@hookimpl
def composer_samplers() -> Iterator[SamplerSpec]:
    yield SamplerSpec(
        name="openai",
        summary="An OpenAI-compatible server that returns token ids and log-probabilities, such as vLLM.",
        factory="composer_plugin_remote_sampler.sampler:build_openai",
        config=OpenAiConfig,
        capabilities=OFFERS,
        footprint=FOOTPRINT,
    )
    yield SamplerSpec(
        name="sglang",
        summary="An SGLang server, by its own /generate.",
        factory="composer_plugin_remote_sampler.sampler:build_sglang",
        config=SglangConfig,
        capabilities=OFFERS,
        footprint=FOOTPRINT,
    )
    yield SamplerSpec(
        name="text",
        summary="Any OpenAI-compatible server: its text, encoded here; for evaluation only.",
        factory="composer_plugin_remote_sampler.sampler:build_text",
        config=TextConfig,
        footprint=FOOTPRINT,
    )


@hookimpl
def composer_check(run: RunView) -> Iterator[Problem]:
    """Refuse to train on text, on weights that do not travel, and on log-probabilities of another distribution."""
    stages = [choice.stage for choice in run.config.stages]
    used = {name: choice.use for name, choice in run.config.samplers.items()}
    for stage in stages:
        if getattr(stage, "sampler", "") in used and used[stage.sampler].endswith("/text"):
            message = f"{TEXT} is told no token ids: it serves evaluation only"
            yield Problem(
                f"stages.{stage.name}.sampler", message, "use remote-sampler/openai, or a server that has ids"
            )
    for id, settings in run.settings.get("samplers", ()):
        if not isinstance(settings, TextConfig) or not stages:
            continue
        if not isinstance(settings, IdsConfig):
            message = f"{id} is told no token ids: it serves evaluation only"
            yield Problem("sampler.use", message, "use remote-sampler/openai or sglang, or leave out the stages")
        elif not settings.folder:
            message = f"the server of {id} cannot be given the weights that the stages make"
            yield Problem("sampler.folder", message, "name the folder it was started on, where both sides see it")
        if isinstance(settings, OpenAiConfig) and not settings.processed_logprobs:
            for stage in stages:
                if getattr(stage, "temperature", 1.0) != 1.0:
                    message = "the server's log-probabilities are of temperature 1, which is not sampled from"
                    fix = "start it with --logprobs-mode processed_logprobs and set sampler.processed_logprobs = true"
                    yield Problem(f"stages.{stage.name}.temperature", message, fix)
