"""The built-in plugin `core`, registered through the same hooks as any other."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core.config import InProcessConfig
from composer_core.console import ConsoleConfig
from composer_core.hookspecs import hookimpl
from composer_core.records import ContextSpec, ExecutorSpec, StoreSpec, TrackerSpec
from composer_core.stores import FolderConfig

COMPOSER_API = 1


@hookimpl
def composer_executors() -> Iterable[ExecutorSpec]:
    yield ExecutorSpec(
        name="inprocess",
        factory="composer_core.executor:InProcessExecutor",
        config=InProcessConfig,
        footprint="composer_core.estimate:inprocess",
        in_flight="max_concurrent",
        summary="episodes as tasks of one process",
    )


@hookimpl
def composer_contexts() -> Iterable[ContextSpec]:
    yield ContextSpec(name="plain", factory="composer_core.context:Plain", summary="goes on until the window is full")


@hookimpl
def composer_stores() -> Iterable[StoreSpec]:
    yield StoreSpec(
        name="folder",
        factory="composer_core.stores:FolderStore",
        config=FolderConfig,
        footprint="composer_core.estimate:folder",
        summary="blobs as files below the run folder",
    )


@hookimpl
def composer_trackers() -> Iterable[TrackerSpec]:
    yield TrackerSpec(
        name="jsonl",
        factory="composer_core.tracking:JsonlTracker",
        summary="events.jsonl, one event a line",
        footprint="composer_core.estimate:events",
    )
    yield TrackerSpec(
        name="console",
        factory="composer_core.console:ConsoleTracker",
        config=ConsoleConfig,
        summary="progress on a terminal, plain lines elsewhere",
    )
