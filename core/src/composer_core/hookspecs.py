"""Every hook, typed, grouped by phase. Hooks serve registration and life cycle only; hot loops never dispatch here.

A plugin is a thin module (stdlib, attrs, composer_core) with `COMPOSER_API = 1` and some of these functions, each
marked `@hookimpl`. Registration hooks take no argument and yield records; they run once per process, plugin by plugin
in listed order. They must be plain functions: `async def` and wrappers are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy
from attrs import Factory, frozen

if TYPE_CHECKING:
    from composer_core.footprint import ModelSize
    from composer_core.records import (
        AlgorithmSpec,
        ContextSpec,
        ExecutorSpec,
        KernelSpec,
        ModelSpec,
        RendererSpec,
        RewardSpec,
        SamplerSpec,
        SandboxSpec,
        StoreSpec,
        TaskSpec,
        ToolSpec,
        TrackerSpec,
        TrainerSpec,
    )

__all__ = [
    "REGISTRATION_HOOKS",
    "Problem",
    "ProcessView",
    "RunView",
    "composer_algorithms",
    "composer_check",
    "composer_contexts",
    "composer_executors",
    "composer_kernels",
    "composer_models",
    "composer_process_start",
    "composer_renderers",
    "composer_rewards",
    "composer_samplers",
    "composer_sandboxes",
    "composer_stores",
    "composer_tasks",
    "composer_tools",
    "composer_trackers",
    "composer_trainers",
    "hookimpl",
]

PROJECT = "composer"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@frozen
class Problem:
    """One reason why a run would not work, found before anything is built."""

    where: str
    """The key of the run file it is about, such as "rewards[1].weight"."""
    message: str
    fix: str = ""


@frozen
class RunView:
    """A run file after loading, as `composer_check` sees it."""

    config: Any
    """The `config.RunConfig`."""
    settings: Any
    """Mapping of kind -> tuple of (component id, structured config) that the run has chosen."""
    records: Mapping[str, tuple[tuple[str, Any], ...]] = Factory(dict)
    """The same components' records: kind -> tuple of (component id, spec)."""
    episodes: int = 0
    """Episodes of the whole run, void ones and their refills apart; only where a footprint is asked for."""
    model_size: ModelSize | None = None
    """What the chosen model weighs; only where a footprint is asked for, None where its record does not tell."""
    plugins: frozenset[str] = frozenset()
    """Names of the plugins that offer components to the run."""


@frozen
class ProcessView:
    """The process a plugin was loaded into."""

    role: str
    """controller, worker, sampler or trainer."""
    rank: int
    run_id: str
    run_dir: Path


# --- registration ---------------------------------------------------------------------------------------------


@hookspec
def composer_tools() -> Iterable[ToolSpec]:  # type: ignore[empty-body]
    '''Yield tools: typed functions that the model may call.

    ```python
    from composer_core import ToolSpec, hookimpl

    COMPOSER_API = 1

    def word_count(text: str) -> str:
        """Count the words of a text."""
        return str(len(text.split()))

    @hookimpl
    def composer_tools():
        yield ToolSpec.of(word_count)
    ```
    '''


@hookspec
def composer_sandboxes() -> Iterable[SandboxSpec]:  # type: ignore[empty-body]
    """Yield providers of sandboxes (`protocols.SandboxProvider`).

    ```python
    from composer_core import SandboxSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_sandboxes():
        yield SandboxSpec(name="jail", factory="my_package.jail:JailProvider", isolation="namespaces")
    ```
    """


@hookspec
def composer_samplers() -> Iterable[SamplerSpec]:  # type: ignore[empty-body]
    """Yield samplers, which continue token ids (`protocols.Sampler`).

    ```python
    from composer_core import SamplerSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_samplers():
        yield SamplerSpec(name="mine", factory="my_package.sampler:Sampler", capabilities={"sampler.logprobs"})
    ```
    """


@hookspec
def composer_rewards() -> Iterable[RewardSpec]:  # type: ignore[empty-body]
    """Yield rewards: typed functions whose parameters are injected by name.

    ```python
    from composer_core import RewardSpec, hookimpl

    COMPOSER_API = 1

    def brief(trace) -> float:
        return 1.0 / max(1, len(trace.turns))

    @hookimpl
    def composer_rewards():
        yield RewardSpec(name="brief", function=brief, range=(0.0, 1.0))
    ```
    """


@hookspec
def composer_kernels() -> Iterable[KernelSpec]:  # type: ignore[empty-body]
    """Yield kernels: implementations of an op of `composer_core.tensors.kernels`, each with its reference.

    ```python
    from composer_core import KernelSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_kernels():
        yield KernelSpec(
            name="experts", op="experts", factory="my_package.kernels:fast", reference="my_package.kernels:plain"
        )
    ```
    """


@hookspec
def composer_tasks() -> Iterable[TaskSpec]:  # type: ignore[empty-body]
    """Yield task sets (`protocols.TaskSet`).

    ```python
    from composer_core import TaskSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_tasks():
        yield TaskSpec(name="issues", factory="my_package.tasks:Issues")
    ```
    """


@hookspec
def composer_models() -> Iterable[ModelSpec]:  # type: ignore[empty-body]
    """Yield models: a tokenizer factory (no torch) and a policy factory.

    ```python
    from composer_core import ModelSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_models():
        yield ModelSpec(name="mine", tokenizer="my_package.tokenizer:load", policy="my_package.policy:build")
    ```
    """


@hookspec
def composer_renderers() -> Iterable[RendererSpec]:  # type: ignore[empty-body]
    """Yield renderers (`protocols.Renderer`).

    ```python
    from composer_core import RendererSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_renderers():
        yield RendererSpec(name="mine", factory="my_package.renderer:Renderer", special_tokens=("<call>", "</call>"))
    ```
    """


@hookspec
def composer_algorithms() -> Iterable[AlgorithmSpec]:  # type: ignore[empty-body]
    """Yield algorithms: an advantage without torch and an objective in torch.

    ```python
    from composer_core import AlgorithmSpec, hookimpl

    COMPOSER_API = 1

    def advantage(rewards, config):
        mean = sum(rewards) / len(rewards)
        return [reward - mean for reward in rewards]

    @hookimpl
    def composer_algorithms():
        yield AlgorithmSpec(name="plain", advantage=advantage, objective="my_package.loss:objective")
    ```
    """


@hookspec
def composer_trainers() -> Iterable[TrainerSpec]:  # type: ignore[empty-body]
    """Yield trainers (`protocols.Trainer`).

    ```python
    from composer_core import TrainerSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_trainers():
        yield TrainerSpec(name="mine", factory="my_package.trainer:Trainer")
    ```
    """


@hookspec
def composer_executors() -> Iterable[ExecutorSpec]:  # type: ignore[empty-body]
    """Yield executors (`protocols.Executor`).

    ```python
    from composer_core import ExecutorSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_executors():
        yield ExecutorSpec(name="mine", factory="my_package.executor:Executor")
    ```
    """


@hookspec
def composer_contexts() -> Iterable[ContextSpec]:  # type: ignore[empty-body]
    """Yield contexts (`protocols.Context`).

    ```python
    from composer_core import ContextSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_contexts():
        yield ContextSpec(name="mine", factory="my_package.context:Context", capabilities={"context.branches"})
    ```
    """


@hookspec
def composer_trackers() -> Iterable[TrackerSpec]:  # type: ignore[empty-body]
    """Yield trackers (`protocols.Tracker`).

    ```python
    from composer_core import TrackerSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_trackers():
        yield TrackerSpec(name="mine", factory="my_package.tracker:Tracker")
    ```
    """


@hookspec
def composer_stores() -> Iterable[StoreSpec]:  # type: ignore[empty-body]
    """Yield stores (`protocols.Store`).

    ```python
    from composer_core import StoreSpec, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_stores():
        yield StoreSpec(name="mine", factory="my_package.store:Store")
    ```
    """


# --- life cycle -----------------------------------------------------------------------------------------------


@hookspec
def composer_check(run: RunView) -> Iterable[Problem]:  # type: ignore[empty-body]
    """Yield problems of a run file before anything is built; called by `check` and at the start of every run.

    ```python
    from composer_core import Problem, hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_check(run):
        if run.config.seed < 0:
            yield Problem(where="seed", message="must not be negative", fix="choose a seed >= 0")
    ```
    """


@hookspec
def composer_process_start(process: ProcessView) -> None:
    """Called once in every process of a run, after registration and before anything is built.

    ```python
    from composer_core import hookimpl

    COMPOSER_API = 1

    @hookimpl
    def composer_process_start(process):
        print(process.role, process.rank)
    ```
    """


REGISTRATION_HOOKS: dict[str, str] = {
    "composer_tools": "tools",
    "composer_sandboxes": "sandboxes",
    "composer_samplers": "samplers",
    "composer_rewards": "rewards",
    "composer_kernels": "kernels",
    "composer_tasks": "tasks",
    "composer_models": "models",
    "composer_renderers": "renderers",
    "composer_algorithms": "algorithms",
    "composer_trainers": "trainers",
    "composer_executors": "executors",
    "composer_contexts": "contexts",
    "composer_trackers": "trackers",
    "composer_stores": "stores",
}
