"""Control groups of the guest (version 2): a command is a group, so it is limited, counted and killed as a whole.

The agent stays in the root group, which nothing limits; all commands together stand below `work`, which leaves the
agent memory and process numbers to go on with.
"""

from __future__ import annotations

import os
import time

ROOT = "/sys/fs/cgroup"
WORK = f"{ROOT}/work"
RESERVE_BYTES = 48 << 20
"""Memory of the guest that all commands together leave to the agent and the kernel."""
RESERVE_PROCESSES = 2048
"""Processes of all commands together."""
GONE_S = 2.0
"""How long killed processes may take to be gone, which the kernel does by itself."""


def begin() -> None:
    """Once, before any command."""
    put(f"{ROOT}/cgroup.subtree_control", "+memory +pids")
    os.mkdir(WORK)
    put(f"{WORK}/cgroup.subtree_control", "+memory +pids")
    put(f"{WORK}/memory.max", str(_all_memory() - RESERVE_BYTES))
    put(f"{WORK}/pids.max", str(RESERVE_PROCESSES))


def _all_memory() -> int:
    with open("/proc/meminfo") as file:
        return int(file.readline().split()[1]) << 10


class Group:
    """One command's processes, whatever they do to their parents, sessions or process groups."""

    def __init__(self, name: str, memory_bytes: int, processes: int) -> None:
        self.path = f"{WORK}/{name}"
        os.mkdir(self.path)
        put(f"{self.path}/memory.max", str(memory_bytes))
        put(f"{self.path}/pids.max", str(processes))

    def enter(self) -> None:
        """The calling process enters."""
        put(f"{self.path}/cgroup.procs", "0")

    def out_of_memory(self) -> int:
        """Processes that the kernel has killed in it for want of memory."""
        with open(f"{self.path}/memory.events") as file:
            rows = dict(line.split() for line in file)
        return int(rows.get("oom_kill", "0"))

    def kill(self) -> None:
        put(f"{self.path}/cgroup.kill", "1")

    def remove(self) -> bool:
        """False while a killed process is still on its way out."""
        try:
            os.rmdir(self.path)
        except OSError:
            return False
        return True

    def remove_soon(self) -> None:
        end = time.monotonic() + GONE_S
        while not self.remove() and time.monotonic() < end:
            time.sleep(0.002)


def put(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
