"""What the sandboxes start beside the run. Thin."""

from __future__ import annotations

from composer_core import Footprint, RunView
from composer_core.footprint import Process
from composer_plugin_microvm.config import FirecrackerConfig, QemuConfig

BASE_BYTES = 128 << 20
"""Memory that a booted guest has touched, shared by all machines of one size."""
QEMU_BYTES = 50 << 20
"""Of a machine that does nothing, beside what it shares (proportional set size, measured)."""

FIRECRACKER_BYTES = 5 << 20
"""Of a machine that does nothing, as its project states it (SPECIFICATION.md); not measured here."""


def qemu(config: QemuConfig, run: RunView) -> Footprint:
    limits = run.config.sandbox_limits
    full = QEMU_BYTES + limits.memory_bytes + limits.disk_bytes
    machine = Process("a virtual machine", config.machines, full)
    store = Process("templates and snapshots in memory", 1, config.store_bytes, capped=True)
    return Footprint(parts={"a booted machine": BASE_BYTES}, processes=(machine, store))


def firecracker(config: FirecrackerConfig, run: RunView) -> Footprint:
    """Templates and snapshots are files."""
    limits = run.config.sandbox_limits
    full = FIRECRACKER_BYTES + limits.memory_bytes + limits.disk_bytes
    machine = Process("a virtual machine", config.machines, full)
    return Footprint(parts={"a booted machine": BASE_BYTES}, processes=(machine,))
