"""What the kernel tells of a node's load: memory, cores, pressure stall information where it has that.

A server inside a control group counts the group's memory limit where that is lower than the machine's.
"""

from __future__ import annotations

import os
from pathlib import Path

from attrs import frozen

LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


@frozen
class Pressure:
    """One look. Percentages are of the last 10 s; None where this kernel does not tell."""

    total_bytes: int
    available_bytes: int
    cores: int
    load: float
    """Mean of runnable tasks over a minute."""
    memory_some: float | None = None
    memory_full: float | None = None
    cpu_some: float | None = None
    io_full: float | None = None


class Machine:
    """Reads below `root`, the host's own files by default."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def look(self) -> Pressure:
        memory = self._memory()
        total = memory.get("MemTotal", 1)
        memory_some, memory_full = self._stalls("memory")
        cpu_some, _ = self._stalls("cpu")
        _, io_full = self._stalls("io")
        return Pressure(
            min([total, *self._limits()]),
            memory.get("MemAvailable", total),
            os.cpu_count() or 1,
            float((self._text("proc/loadavg").split() or ["0"])[0]),
            memory_some,
            memory_full,
            cpu_some,
            io_full,
        )

    def _memory(self) -> dict[str, int]:
        rows = (line.split() for line in self._text("proc/meminfo").splitlines())
        return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) > 1}

    def _limits(self) -> list[int]:
        return [int(text) for text in map(self._text, LIMITS) if text.isdigit()]

    def _stalls(self, what: str) -> tuple[float | None, float | None]:
        """Shares (some, full) of the last 10 s."""
        found = {}
        for line in self._text(f"proc/pressure/{what}").splitlines():
            kind, *rest = line.split()
            found[kind] = float(dict(part.split("=") for part in rest)["avg10"])
        return found.get("some"), found.get("full")

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text().strip()
        except OSError:
            return ""
