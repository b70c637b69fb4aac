"""How a container is walled in, and what it is made from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeAlias

from attrs import frozen

from composer_core.protocols import TemplateSpec
from composer_plugin_docker.engine import Engine

AGENT_BYTES = 48 << 20
"""Room for the agent and its shepherds beside a sandbox's own memory."""
AGENT_PROCESSES = 16
"""Room for them beside a sandbox's own processes."""
SHM_BYTES = 16 << 20
INODES = 1 << 16
FILES_OPEN = 4096
CAPABILITIES = ("KILL", "SETGID", "SETPCAP", "SETUID")
"""Of the agent alone: to end its commands, to take every right from them, and to become their user."""


@frozen
class Template:
    """What containers are made from."""

    image: str
    start: tuple[str, ...]
    env: Mapping[str, str]
    spec: TemplateSpec
    workspace_bytes: int


@frozen
class Capture:
    """A sandbox's files as its agent told them, against its template."""

    template: Template
    header: Mapping[str, Any]
    data: bytes


Captured: TypeAlias = "asyncio.Future[Capture]"
"""One that may still be under way: containers that are made from it start meanwhile."""


def options(engine: Engine, template: Template, cpus: float) -> dict[str, Any]:
    """How the engine is told to wall in a container of `template`."""
    spec = template.spec
    room = template.workspace_bytes + spec.disk_bytes
    sizes = {"/workspace": room, "/tmp": spec.disk_bytes}
    memory = spec.memory_bytes + sum(sizes.values()) + SHM_BYTES + AGENT_BYTES
    rights = f"rw,exec,nosuid,nodev,strictatime,uid=65534,gid=65534,mode=755,nr_inodes={INODES}"
    return {
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {path: f"{rights},size={size}" for path, size in sizes.items()},
        "shm_size": SHM_BYTES,
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": spec.processes + AGENT_PROCESSES,
        "nano_cpus": int(cpus * 1e9) or None,
        "cap_drop": ["ALL"],
        "cap_add": list(CAPABILITIES),
        "security_opt": ["no-new-privileges"],
        "ulimits": [{"Name": "nofile", "Soft": FILES_OPEN, "Hard": FILES_OPEN}],
        "log_config": {"Type": "none", "Config": {}},
        "ipc_mode": "private",
    }
