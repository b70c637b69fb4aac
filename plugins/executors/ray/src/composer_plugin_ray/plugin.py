"""Hook module: an executor on Ray."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import ExecutorSpec, Footprint, hookimpl
from composer_plugin_ray.config import RayConfig

COMPOSER_API = 1


@hookimpl
def composer_executors() -> Iterable[ExecutorSpec]:
    yield ExecutorSpec(
        name="ray",
        summary="episodes, samplers and trainer as Ray actors, on one machine or a cluster",
        factory="composer_plugin_ray.executor:build",
        config=RayConfig,
        footprint=Footprint(imports={"ray": 60 << 20}),
        capabilities={"executor.remote"},
    )
