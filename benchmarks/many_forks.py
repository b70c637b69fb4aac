"""Many children of one state, for `sandboxes.py`: the time of each, and the memory of one that does nothing.

Memory is what processes hold of their own (proportional set size without shared memory, of all that can be seen), and
what the kernel holds for them: file systems in memory, slabs, page tables, stacks, and the memory of each core. It is
the whole machine's, so other work on it is in it too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from composer_core.protocols import Created, ExecRequest

TRUE = ExecRequest(("true",))
KERNEL = ("Slab", "Shmem", "PageTables", "KernelStack", "Percpu")
SETTLE_S = 1.0


@asynccontextmanager
async def children(box: Any, count: int) -> AsyncIterator[list[float]]:
    """Forks of a sandbox that does not change, one after the other, all alive: ms to the end of each one's command."""
    made: list[Any] = []
    spent = []
    try:
        for _ in range(count):
            started = time.perf_counter()
            (child,) = await box.fork(1)
            assert isinstance(child, Created), child
            made.append(child.backend)
            await made[-1].exec(TRUE)
            spent.append((time.perf_counter() - started) * 1e3)
        yield spent
    finally:
        await asyncio.gather(*(one.destroy() for one in made))


async def forks(box: Any, count: int) -> list[float]:
    """Milliseconds of each."""
    async with children(box, count) as spent:
        return spent


async def idle(box: Any, count: int) -> list[float]:
    """MiB that one child adds once its command has ended, the mean of `count`."""
    async with children(box, 1):
        before = used_mib()
        async with children(box, count):
            await asyncio.sleep(SETTLE_S)
            return [(used_mib() - before) / count]


def used_mib() -> float:
    """Of all processes, and of the kernel for them."""
    kib = sum(_own_kib(path) for path in Path("/proc").glob("[0-9]*/smaps_rollup"))
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        kib += int(value.split()[0]) if name in KERNEL else 0
    return kib / 1024


def _own_kib(path: Path) -> int:
    rows: dict[str, int] = {}
    with suppress(OSError):  # it has ended, or is another user's
        for line in path.read_text().splitlines()[1:]:
            name, value, _ = line.split()
            rows[name.rstrip(":")] = int(value)
    return rows.get("Pss", 0) - rows.get("Pss_Shmem", 0)
