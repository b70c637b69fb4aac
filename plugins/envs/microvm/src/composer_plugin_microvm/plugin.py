"""Hook module: a virtual machine for each sandbox."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import SandboxSpec, hookimpl
from composer_plugin_microvm.config import FirecrackerConfig, QemuConfig

COMPOSER_API = 1
CAPABILITIES = frozenset(
    {
        "sandbox.isolates",
        "sandbox.forks",
        "sandbox.snapshots.files",
        "sandbox.snapshots.full",
        "sandbox.changes",
        "sandbox.sessions",
        "sandbox.pauses",
        "sandbox.networks",
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
        factory="composer_plugin_microvm.qemu_driver:build",
        config=QemuConfig,
        footprint="composer_plugin_microvm.footprint:qemu",
        isolation="vm",
        capabilities=CAPABILITIES,
    )
    yield SandboxSpec(
        name="firecracker",
        summary="A virtual machine for each sandbox (Firecracker, KVM), loaded from a booted one; no network, limits",
        factory="composer_plugin_microvm.firecracker_driver:build",
        config=FirecrackerConfig,
        footprint="composer_plugin_microvm.footprint:firecracker",
        isolation="vm",
        capabilities=CAPABILITIES,
    )
