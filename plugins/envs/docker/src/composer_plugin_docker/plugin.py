"""Hook module: sandboxes in containers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from composer_core import Problem, RunView, SandboxSpec, hookimpl
from composer_plugin_docker.config import DockerConfig

COMPOSER_API = 1


@hookimpl
def composer_sandboxes() -> Iterable[SandboxSpec]:
    yield SandboxSpec(
        name="docker",
        summary="Containers: no network, read-only root, limits; commands through an agent instead of docker exec",
        factory="composer_plugin_docker.provider:build",
        config=DockerConfig,
        footprint="composer_plugin_docker.footprint:docker",
        isolation="container",
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


@hookimpl
def composer_check(run: RunView) -> Iterator[Problem]:
    """A sandbox has one base image."""
    for id, config in run.settings.get("sandboxes", ()):
        if id == "docker/docker":
            named = [f"sandbox.{name}" for name in ("image", "rootfs", "folders") if getattr(config, name)]
            if len(named) > 1:
                yield Problem(named[1], "a sandbox has one base image", f"leave out all but one of {', '.join(named)}")
