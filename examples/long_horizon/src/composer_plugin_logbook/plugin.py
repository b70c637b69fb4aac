"""Hook module: the task set, its two tools, and a demonstrator."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import Footprint, SamplerSpec, TaskSpec, ToolSpec, hookimpl
from composer_plugin_logbook.config import BooksConfig, ReaderConfig
from composer_plugin_logbook.tools import answer, turn

COMPOSER_API = 1


@hookimpl
def composer_tasks() -> Iterable[TaskSpec]:
    yield TaskSpec(
        name="books",
        summary="logbooks whose pages are shown once, and a question on the last one",
        factory="composer_plugin_logbook.tasks:build",
        config=BooksConfig,
    )


@hookimpl
def composer_tools() -> Iterable[ToolSpec]:
    yield ToolSpec.of(turn, effect="write")
    yield ToolSpec.of(answer, effect="write", ends=True)


@hookimpl
def composer_samplers() -> Iterable[SamplerSpec]:
    yield SamplerSpec(
        name="reader",
        summary="scripted: works from its window, and forgets a setting now and then when it sums up",
        factory="composer_plugin_logbook.reader:build",
        config=ReaderConfig,
        footprint=Footprint(),
        capabilities={"sampler.logprobs", "sampler.versions", "sampler.deterministic"},
    )
