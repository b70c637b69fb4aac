"""The plugin `scripted`: the production parts of a run, with turn lengths, calls and rewards of the workload.

Sampler and renderer are the real ones with one word changed: the sampler is told how many ids this turn has, and what
the renderer parsed is replaced by the scripted call. Tasks, tool and reward are data. Registered by `composer_side`
in its own process and installed nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, frozen
from workload import FILE, SOURCE, Workload, arguments, is_call, result

from composer_core import (
    BuildContext,
    Patch,
    RendererSpec,
    RewardSpec,
    SamplerSpec,
    Task,
    TaskSpec,
    TaskView,
    ToolContext,
    ToolSpec,
    Trace,
    Tree,
    TreeRef,
    hookimpl,
)
from composer_core.errors import SamplerError
from composer_core.protocols import Renderer, Sampler, ToolSchema
from composer_core.types import (
    Call,
    Completion,
    GenerateRequest,
    GenerateSettings,
    Grading,
    GradingRef,
    Message,
    ParsedTurn,
    ToolResult,
    WeightsRef,
)
from composer_plugin_hf.renderers.config import HERMES_TOKENS, HermesConfig
from composer_plugin_hf.renderers.hermes import build_hermes
from composer_plugin_torch_sampler.config import ContinuousConfig
from composer_plugin_torch_sampler.sampler import build as build_continuous

COMPOSER_API = 1


@frozen
class WorkloadConfig:
    """Fields of `workload.Workload`."""

    groups: int
    group_size: int


@frozen
class LookConfig:
    delay_ms: float = 0.0
    """What the tool costs: time in which it only waits."""


class ScriptedTasks:
    """`protocols.TaskSet`: as many tasks as a step has groups, so every step plays each of them once."""

    def __init__(self, config: WorkloadConfig, build: BuildContext) -> None:
        self.workload = Workload(**asdict(config))
        self._tree = Tree.of({FILE: SOURCE})

    def splits(self) -> Mapping[str, str]:
        return {"train": "the benchmark's tasks"}

    def tasks(self, split: str) -> Sequence[Task]:
        return [self._task(number) for number in range(self.workload.groups)]

    def task(self, task_id: str) -> Task:
        return self._task(number_of(task_id))

    def _task(self, number: int) -> Task:
        name = f"task-{number}"
        view = TaskView(name, self.workload.prompt(number), self._tree.ref)
        return Task(view, GradingRef("scripted/tasks", name))

    def tree(self, ref: TreeRef) -> Tree:
        return self._tree

    def grading(self, ref: GradingRef) -> Grading:
        return Grading(hidden=Tree.of({}), argv=("true",))

    def gold(self, task_id: str) -> Patch:
        return Patch()

    def exploits(self, task_id: str) -> Mapping[str, Patch]:
        return {}

    def texts(self, split: str) -> Sequence[str]:
        return [SOURCE]


def number_of(task_id: str) -> int:
    return int(task_id.removeprefix("task-"))


class PacedSampler:
    """`protocols.Sampler`: the real one, asked for exactly as many ids as the script gives this turn."""

    def __init__(self, inner: Sampler, workload: Workload) -> None:
        self._inner, self._workload = inner, workload

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        length = self._length(request)
        if length > settings.max_tokens:
            raise SamplerError("the run's limits cut a scripted turn", expected=f"{length}", found=settings.max_tokens)
        return await self._inner.generate(ids, evolve(settings, max_tokens=length, stop_ids=frozenset()), request)

    def _length(self, request: GenerateRequest) -> int:
        """Ids of the turn that begins after `request.position` sampled ones."""
        begun = 0
        for length in self._workload.turn_lengths(
            number_of(request.task_id), request.attempt % self._workload.group_size
        ):
            if begun == request.position:
                return length
            begun += length
        raise SamplerError("the script has no further turn", where=request.session)

    async def load(self, weights: WeightsRef, path: Path) -> None:
        await self._inner.load(weights, path)

    async def release(self, session: str) -> None:
        await self._inner.release(session)

    def stats(self) -> Mapping[str, float]:
        return self._inner.stats()

    async def close(self) -> None:
        await self._inner.close()


def build_sampler(config: ContinuousConfig, build: BuildContext) -> PacedSampler:
    return PacedSampler(build_continuous(config, build), build.get("tasks").workload)


class ScriptedRenderer:
    """`protocols.Renderer`: the real one; of what it parsed, the calls are replaced by the script's."""

    def __init__(self, inner: Renderer) -> None:
        self._inner = inner

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        return self._inner.open(messages, tools)

    def results(self, results: Sequence[ToolResult], ended: bool) -> list[int]:
        return self._inner.results(results, ended)

    def request(self, message: Message, ended: bool) -> list[int]:
        return self._inner.request(message, ended)

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        calls = (Call("c0", "look", arguments(len(ids))),) if is_call(len(ids)) else ()
        return evolve(self._inner.parse(ids), calls=calls)

    def render(self, turn: ParsedTurn) -> list[int]:
        return self._inner.render(turn)

    def stop_ids(self) -> frozenset[int]:
        return self._inner.stop_ids()


def build_renderer(config: HermesConfig, build: BuildContext) -> ScriptedRenderer:
    return ScriptedRenderer(build_hermes(config, build))


async def look(context: ToolContext, path: str) -> str:
    """Show a file of the workspace.

    Args:
        path: The path of the file.
    """
    if context.config.delay_ms:
        await asyncio.sleep(context.config.delay_ms / 1e3)
    return result(path)


@frozen
class RewardConfig:
    group_size: int
    """Members of a group."""


async def spread(trace: Trace, config: Any) -> float:
    """The reward of `Workload.reward`; costs nothing."""
    return Workload(group_size=config.group_size).reward(trace.key.attempt % config.group_size)


@hookimpl
def composer_tasks() -> Iterator[TaskSpec]:
    yield TaskSpec(name="tasks", factory=ScriptedTasks, config=WorkloadConfig)


@hookimpl
def composer_samplers() -> Iterator[SamplerSpec]:
    offers = {"sampler.logprobs", "sampler.versions", "sampler.swaps"}
    yield SamplerSpec(name="paced", factory=build_sampler, config=ContinuousConfig, capabilities=offers)


@hookimpl
def composer_renderers() -> Iterator[RendererSpec]:
    yield RendererSpec(name="hermes", factory=build_renderer, config=HermesConfig, special_tokens=HERMES_TOKENS)


@hookimpl
def composer_tools() -> Iterator[ToolSpec]:
    yield ToolSpec.of(look, config=LookConfig)


@hookimpl
def composer_rewards() -> Iterator[RewardSpec]:
    yield RewardSpec(name="spread", function=spread, config=RewardConfig, outcome=True)
