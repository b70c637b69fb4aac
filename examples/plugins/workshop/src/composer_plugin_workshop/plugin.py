"""Hook module: what this distribution offers, as records.

Every command that names the plugin imports this file, `check` and `plugins` included, so it imports nothing heavy.
What needs torch or starts processes is named by "module:attr" and imported only when a run chooses it.
"""

from collections.abc import Iterable

from composer_core import AlgorithmSpec, Footprint, RewardSpec, SamplerSpec, SandboxSpec, ToolSpec, hookimpl
from composer_plugin_workshop.config import MedianConfig
from composer_plugin_workshop.median import advantage
from composer_plugin_workshop.outline import outline

COMPOSER_API = 1


@hookimpl
def composer_tools() -> Iterable[ToolSpec]:
    yield ToolSpec.of(outline)


@hookimpl
def composer_rewards() -> Iterable[RewardSpec]:
    yield RewardSpec(
        name="small_patch",
        summary="the share of the touched files' lines that a patch keeps; 0 without a patch",
        function="composer_plugin_workshop.small_patch:small_patch",
        range=(0.0, 1.0),
        pure=True,
    )


@hookimpl
def composer_algorithms() -> Iterable[AlgorithmSpec]:
    yield AlgorithmSpec(
        name="median",
        summary="reward minus the group's median, over the mean distance from it; clipped importance weights",
        advantage=advantage,
        objective="composer_plugin_workshop.loss:objective",
        needs={"behavior"},
        clips="behavior",
        config=MedianConfig,
    )


@hookimpl
def composer_sandboxes() -> Iterable[SandboxSpec]:
    yield SandboxSpec(
        name="jail",
        summary="one bubblewrap for each command around a folder; no network, no limits on memory or disk",
        factory="composer_plugin_workshop.jail:JailProvider",
        isolation="namespaces",
        capabilities={"sandbox.isolates", "sandbox.forks", "sandbox.snapshots.files"},
    )


@hookimpl
def composer_samplers() -> Iterable[SamplerSpec]:
    yield SamplerSpec(
        name="guide",
        summary="scripted demonstrator for any task set: outlines, reads and rewrites what the answer touches",
        factory="composer_plugin_workshop.guide:Guide",
        capabilities={"sampler.logprobs", "sampler.versions", "sampler.deterministic"},
        footprint=Footprint(),  # nothing worth counting; what the jail's commands take is unknown, so it gives none
    )
