"""One generation, from what was asked to the completion that answers it."""

from __future__ import annotations

from collections.abc import Callable

from attrs import Factory, define

from composer_core.columns import Column
from composer_core.tensors import signed
from composer_core.types import Completion, GenerateRequest, GenerateSettings
from composer_plugin_torch_sampler.sessions import Session


@define(eq=False)
class Job:
    """One generation: what was asked, what has been sampled, and where the answer goes."""

    tokens: list[int]
    """Prompt and sampled ids; grows."""
    settings: GenerateSettings
    request: GenerateRequest
    done: Callable[[Completion | Exception], None]
    prompt: int = 0
    noise: int = 0
    session: Session | None = None
    logprobs: list[float] = Factory(list)
    runs: list[list[int]] = Factory(list)
    cache_version: int = 0
    waited: int = 0
    """Decode steps since its tokens became ready for prefill."""

    def __attrs_post_init__(self) -> None:
        self.prompt = len(self.tokens)
        self.noise = signed(self.request.noise)


def missing(job: Job) -> int:
    """Tokens of an admitted job that have no KV yet."""
    return len(job.tokens) - job.session.cached if job.session is not None else len(job.tokens)


def completion(job: Job, stop: str, cache_version: int, routes: Column | None) -> Completion:
    return Completion(
        ids=Column.of("I32", job.tokens[job.prompt :]),
        logprobs=Column.of("F32", job.logprobs),
        versions=tuple((version, count) for version, count in job.runs),
        stop=stop,
        cache_version=cache_version,
        routes=routes,
    )
