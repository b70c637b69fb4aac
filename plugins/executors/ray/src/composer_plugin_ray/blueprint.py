"""What another process needs to build the run: data only, taken from the run folder that every process must see.

The rows of the plugin list are made anew here and not read from the folder: a resumed run may go on with a source that
has changed, and then its workers have to have what this process has.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from composer_core import BuildContext, Footprint, ProcessView
from composer_core.assembly import Assembly, reopen
from composer_core.errors import ConfigError
from composer_core.events import Event
from composer_core.plugins import Plugins, load_manifest

THREADS = "OMP_NUM_THREADS"


@frozen
class Blueprint:
    """The run as its folder records it."""

    run_dir: Path
    config: Mapping[str, Any]
    plugins: tuple[Mapping[str, str], ...]
    threads: str | None
    """The controller's OMP_NUM_THREADS. Ray sets its own, and with it how many threads torch computes with."""
    heavy: tuple[str, ...] = ("policy",)
    """Samplers that live in replicas; the others live in every worker."""

    @classmethod
    def of(cls, build: BuildContext) -> Blueprint:
        """Of the run that this process has opened."""
        folder = build.run_dir.resolve()
        recorded = [{**row, "source": ""} for row in _read(folder, "plugins.json")]
        plugins, config = load_manifest(recorded), _read(folder, "config.json")
        heavy = heavy_samplers(config["samplers"], plugins)
        return cls(folder, config, tuple(plugins.manifest()), os.environ.get(THREADS), heavy)

    def open(
        self,
        role: str,
        rank: int,
        emit: Callable[[Event], None] = lambda event: None,
        samplers: Mapping[str, Any] | None = None,
        **tables: Any,
    ) -> Assembly:
        """The run's assembly in this process; `tables` replace those of the run file.

        Raises:
            ConfigError: the run folder cannot be seen from here.
            PluginError: a plugin is not here, or another one.
        """
        os.environ.pop(THREADS, None)
        if self.threads is not None:
            os.environ[THREADS] = self.threads
        if _read(self.run_dir, "config.json") != self.config:
            raise ConfigError(
                "a process on another machine does not see the run folder",
                where=f"{self.run_dir} on {socket.gethostname()}",
                fix="put --run-dir on a file system that all nodes of the cluster share",
            )
        view = ProcessView(role, rank, str(self.config["name"]), self.run_dir)
        return reopen({**self.config, **tables}, self.plugins, view, emit, samplers)


def heavy_samplers(further: Mapping[str, Mapping[str, Any]], plugins: Plugins) -> tuple[str, ...]:
    """The policy, which weights are published to, and whatever does not say that it works without torch.

    What says so is the footprint of its record: one that is told there, and names no torch among its imports.
    """

    def light(name: str) -> bool:
        entry = plugins.registry.find("samplers", further[name]["use"], where=f"samplers.{name}.use")
        told = entry.spec.footprint
        return isinstance(told, Footprint) and "torch" not in told.imports

    return ("policy", *(name for name in further if not light(name)))


def _read(folder: Path, name: str) -> Any:
    """A file of the run folder; None where it is not seen."""
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
