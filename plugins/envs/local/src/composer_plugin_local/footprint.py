"""What `local/namespaces` starts beside the run: commands, and the keeper with the workspaces it holds. Thin."""

from __future__ import annotations

from composer_core import Footprint, RunView
from composer_core.footprint import Process
from composer_plugin_local.config import NamespacesConfig

KEEPERS = 3
"""Launcher, unsharer and the keeper itself; see `keeper.start`."""
KEEPER_BYTES = 20 << 20
"""An interpreter without packages, measured."""


def namespaces(config: NamespacesConfig, run: RunView) -> Footprint:
    commands = Process("a command in a sandbox", config.commands, run.config.sandbox_limits.memory_bytes, capped=True)
    store = Process("workspaces in memory (tmpfs)", 1, config.store_bytes, capped=True)
    return Footprint(processes=(Process("keeper of local/namespaces", KEEPERS, KEEPER_BYTES), commands, store))
