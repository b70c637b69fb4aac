"""What `docker/docker` starts beside the run: the engine's containers and a shim for each. Thin."""

from __future__ import annotations

from composer_core import Footprint, RunView
from composer_core.footprint import Process
from composer_plugin_docker.config import DockerConfig

SHIM_BYTES = 12 << 20
"""containerd's process beside each container, measured."""
SDK_BYTES = 24 << 20
"""docker, requests and urllib3 once imported, measured."""
AGENT_BYTES = 80 << 20
"""The agent with its shepherds, and shared memory; see `sandbox.options`."""


def docker(config: DockerConfig, run: RunView) -> Footprint:
    limits, most = run.config.sandbox_limits, at_once(run)
    each = limits.memory_bytes + 2 * limits.disk_bytes + AGENT_BYTES
    boxes = Process("a container with its files", most, each, capped=True)
    store = Process("snapshots in memory", 1, config.store_bytes, capped=True)
    shims = Process("containerd's shim", most, SHIM_BYTES)
    return Footprint(imports={"docker": SDK_BYTES}, processes=(boxes, shims, store))


def at_once(run: RunView) -> int:
    """Sandboxes that are alive at once: as many as the executor runs episodes."""
    chosen = [config for _, config in run.settings.get("executors", ())]
    return next((config.max_concurrent for config in chosen if hasattr(config, "max_concurrent")), 1)
