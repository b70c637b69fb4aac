"""Hook module: a virtual machine for each sandbox."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import SandboxSpec, hookimpl
from composer_plugin_microvm.config import QemuConfig

COMPOSER_API = 1
CAPABILITIES = frozenset(
    {
        "sandbox.isolates",
        "sandbox.forks",
        "sandbox.snapshots.files",
        "sandbox.changes",
        "sandbox.limits.memory",
        "sandbox.limits.processes",
        "sandbox.limits.file_size",
        "sandbox.limits.disk",
    }
)


@hookimpl
def composer_sandboxes() -> Iterable[SandboxSpec]:
    yield SandboxSpec(
        name="qemu",
        summary="A virtual machine for each sandbox (QEMU microvm), cloned from a booted one; no network, limits",
        factory="composer_plugin_microvm.provider:build",
        config=QemuConfig,
        footprint="composer_plugin_microvm.footprint:qemu",
        isolation="vm",
        capabilities=CAPABILITIES,
    )
