"""Hook module: the task set, its worker, a probe, experts in bf16 and a sampler in 8 bits."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import Footprint, KernelSpec, RewardSpec, SamplerSpec, TaskSpec, hookimpl
from composer_plugin_chores.config import ChoresConfig, WorkerConfig
from composer_plugin_torch_sampler.config import ContinuousConfig

COMPOSER_API = 1


@hookimpl
def composer_tasks() -> Iterable[TaskSpec]:
    yield TaskSpec(
        name="chores",
        summary="one to four drills as one task, named by path or by function",
        factory="composer_plugin_chores.tasks:build",
        config=ChoresConfig,
    )


@hookimpl
def composer_samplers() -> Iterable[SamplerSpec]:
    yield SamplerSpec(
        name="worker",
        summary="scripted: repairs chores, with habits in chosen shares",
        factory="composer_plugin_chores.worker:build",
        config=WorkerConfig,
        footprint=Footprint(),
        capabilities={"sampler.logprobs", "sampler.versions", "sampler.deterministic"},
    )
    yield SamplerSpec(
        name="quantized",
        summary="torch-sampler/continuous with experts in MXFP8, whatever the trainer's are",
        factory="composer_plugin_chores.quantized:build",
        config=ContinuousConfig,
        footprint="composer_plugin_torch_sampler.footprint:footprint",
        capabilities={"sampler.logprobs", "sampler.versions", "sampler.swaps", "sampler.routes"},
    )


@hookimpl
def composer_rewards() -> Iterable[RewardSpec]:
    yield RewardSpec(
        name="measures",
        summary="probe, worth nothing: counts of what an episode did",
        function="composer_plugin_chores.measures:measures",
        weight=0.0,
    )


@hookimpl
def composer_kernels() -> Iterable[KernelSpec]:
    yield KernelSpec(
        name="bf16",
        summary="the experts of a mixture in bf16, whatever the rest of the policy is in",
        op="experts",
        factory="composer_plugin_chores.quantized:build_bf16",
        reference="composer_plugin_hf.experts:build_dense",
        format="bf16",
        tolerance=0.02,
    )
