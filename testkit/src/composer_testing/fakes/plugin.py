"""The plugin `fakes`: every kind, in memory and without torch, so a run file can use them like any other."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import (
    AlgorithmSpec,
    Footprint,
    ModelSpec,
    RendererSpec,
    RewardSpec,
    SamplerSpec,
    SandboxSpec,
    TaskSpec,
    ToolSpec,
    TrainerSpec,
    hookimpl,
)
from composer_testing.fakes import tools
from composer_testing.fakes.config import LearnerConfig, ScriptedConfig, TasksConfig
from composer_testing.fakes.trainer import SimulatedStage, SimulatedTrainerConfig

COMPOSER_API = 1


def centered(rewards: list[float], config: object) -> list[float]:
    """Reward minus the group's mean."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def no_objective(inputs: object, config: object) -> object:
    """The simulated trainer computes no loss."""
    raise NotImplementedError("the fakes' algorithm has no objective; use it with fakes/simulated only")


@hookimpl
def composer_tools() -> Iterable[ToolSpec]:
    yield ToolSpec.of(tools.read)
    yield ToolSpec.of(tools.write, effect="write")
    yield ToolSpec.of(tools.done, ends=True)


@hookimpl
def composer_sandboxes() -> Iterable[SandboxSpec]:
    yield SandboxSpec(
        name="memory",
        factory="composer_testing.fakes.tasks:sandboxes",
        footprint=Footprint(),
        summary="workspaces in memory; commands are Python functions",
        capabilities={"sandbox.forks", "sandbox.snapshots.files", "sandbox.changes"},
    )


@hookimpl
def composer_tasks() -> Iterable[TaskSpec]:
    yield TaskSpec(
        name="sums",
        factory="composer_testing.fakes.tasks:Sums",
        footprint=Footprint(),
        config=TasksConfig,
        summary="write the sum of two numbers into a file",
    )


@hookimpl
def composer_rewards() -> Iterable[RewardSpec]:
    yield RewardSpec(
        name="checked",
        function="composer_testing.fakes.tasks:checked",
        outcome=True,
        summary="1 if the grading command exits with 0",
    )
    yield RewardSpec(
        name="every_other",
        function="composer_testing.fakes.tasks:every_other",
        range=(0.0, 1.0),
        weight=0.3,
        summary="1 for every other attempt, so that a policy that solves nothing still has something to learn from",
    )


@hookimpl
def composer_models() -> Iterable[ModelSpec]:
    yield ModelSpec(
        name="bytes",
        tokenizer="composer_testing.fakes.text:build_tokenizer",
        policy="composer_testing.fakes.text:no_policy",
        footprint=Footprint(),
        summary="one id a byte; no network",
    )


@hookimpl
def composer_renderers() -> Iterable[RendererSpec]:
    yield RendererSpec(
        name="lines",
        factory="composer_testing.fakes.text:build_renderer",
        special_tokens=("<end>", "<turn>"),
        summary="one JSON call a line",
    )


@hookimpl
def composer_samplers() -> Iterable[SamplerSpec]:
    offers = {"sampler.logprobs", "sampler.versions", "sampler.swaps", "sampler.deterministic"}
    yield SamplerSpec(
        name="learner",
        factory="composer_testing.fakes.learner:build_learner",
        footprint=Footprint(),
        config=LearnerConfig,
        capabilities=offers,
        summary="solves more of the sums with every version",
    )
    yield SamplerSpec(
        name="scripted",
        factory="composer_testing.fakes.sampler:build_scripted",
        footprint=Footprint(),
        config=ScriptedConfig,
        capabilities=offers,
        summary="plays the calls that the run file lists, in every episode",
    )


@hookimpl
def composer_trainers() -> Iterable[TrainerSpec]:
    yield TrainerSpec(
        name="simulated",
        factory="composer_testing.fakes.trainer:SimulatedTrainer",
        footprint=Footprint(),
        config=SimulatedTrainerConfig,
        stage_config=SimulatedStage,
        capabilities={"trainer.deterministic"},
        summary="weights are a hash of the batches",
    )


@hookimpl
def composer_algorithms() -> Iterable[AlgorithmSpec]:
    yield AlgorithmSpec(name="centered", advantage=centered, objective=no_objective, summary="reward minus mean")
