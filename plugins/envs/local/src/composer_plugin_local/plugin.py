"""Hook module: the two tiers of sandboxes on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from composer_core import Footprint, Problem, RunView, SandboxSpec, hookimpl
from composer_plugin_local.config import NamespacesConfig, ProcessConfig

COMPOSER_API = 1


@hookimpl
def composer_sandboxes() -> Iterable[SandboxSpec]:
    yield SandboxSpec(
        name="namespaces",
        summary="Linux namespaces over a copy-on-write workspace: no network, no host files, limits",
        factory="composer_plugin_local.namespaces:build",
        config=NamespacesConfig,
        footprint="composer_plugin_local.footprint:namespaces",
        isolation="namespaces",
        capabilities={
            "sandbox.isolates",
            "sandbox.forks",
            "sandbox.snapshots.files",
            "sandbox.changes",
            "sandbox.sessions",
            "sandbox.pauses",
            "sandbox.networks",
            "sandbox.limits.memory",
            "sandbox.limits.processes",
            "sandbox.limits.file_size",
            "sandbox.limits.disk",
        },
    )
    yield SandboxSpec(
        name="process",
        summary="Plain processes in a copied folder: isolates nothing, for trusted code only",
        factory="composer_plugin_local.process:build",
        config=ProcessConfig,
        footprint=Footprint(),
        isolation="none",
        capabilities={"sandbox.forks", "sandbox.snapshots.files"},
    )


@hookimpl
def composer_check(run: RunView) -> Iterator[Problem]:
    """A policy's commands are hostile until someone says otherwise."""
    for id, config in run.settings.get("sandboxes", ()):
        if id == "local/process" and not config.trusted:
            message = "local/process isolates nothing: whatever the policy writes would run as you, with your files"
            yield Problem("sandbox.use", message, "use local/namespaces, or set sandbox.trusted = true")
