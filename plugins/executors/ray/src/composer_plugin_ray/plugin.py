"""Hook module: an executor on Ray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from composer_core import ExecutorSpec, Problem, RunView, hookimpl
from composer_plugin_ray.config import RayConfig

COMPOSER_API = 1


@hookimpl
def composer_executors() -> Iterable[ExecutorSpec]:
    yield ExecutorSpec(
        name="ray",
        summary="episodes, samplers and trainer as Ray actors, on one machine or a cluster",
        factory="composer_plugin_ray.executor:build",
        config=RayConfig,
        footprint="composer_plugin_ray.footprint:footprint",
        capabilities={"executor.remote"},
    )


@hookimpl
def composer_check(run: RunView) -> Iterator[Problem]:
    """What environment servers need of the rest of the run, and what has no effect in it."""
    for id, config in run.settings.get("executors", ()):
        if id != "ray/ray":
            continue
        if config.keep_turns and run.config.deterministic:
            message = "keep_turns has no effect: a deterministic run replays lost episodes from their first token"
            yield Problem("executor.keep_turns", message, "leave it out, or set deterministic = false")
        if not config.environments:
            continue
        if "server" not in run.plugins:
            yield Problem("executor.environments", "the plugin 'server' is not loaded", "add it to plugins")
        if run.config.sandbox.use == "server/remote":
            fix = "leave environments out, or choose the sandbox that the servers are to serve"
            yield Problem("executor.environments", "the run's sandboxes are a server's already", fix)
