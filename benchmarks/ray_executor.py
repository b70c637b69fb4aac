"""What it costs to run episodes as Ray actors: the same run of fakes, through `core/inprocess` and through `ray/ray`.

Both executors are built from one run file of public fakes: a sampler whose generation takes a set time, workspaces in
memory, trivial tools; each trace is encoded, checksummed and stored, each episode graded in a fresh room. An attempt
has 2 to 8 turns, drawn from its noise, so both sides play the same turns. Through Ray an episode crosses from the
controller to one of two workers, and each of its turns from there to a replica and back; processes are started before
the clock is, and both sides play once before they are measured, in turns. "Raw" is with generations that take no time:
then only messages and the loop are left.

    python benchmarks/ray_executor.py
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from results import Results, Row, parser

from composer_core.assembly import Assembly
from composer_core.config import structure, to_data
from composer_core.evaluate import request_for
from composer_core.plugins import Plugins, select
from composer_core.protocols import Executor
from composer_core.rundir import RunDir
from composer_core.types import SlotKey, WeightsRef
from composer_plugin_ray.cluster import Cluster
from composer_plugin_ray.config import RayConfig

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
WORKERS, LOOKS, GROUP = 2, 6, 8
RUN: Mapping[str, Any] = {
    "name": "ray-executor",
    "plugins": ["fakes", "ray"],
    "tasks": {"use": "fakes/sums", "count": 64},
    "sandbox": {"use": "fakes/memory"},
    "tools": {"use": ["fakes/read", "fakes/write", "fakes/done"]},
    "model": {"use": "fakes/bytes"},
    "renderer": {"use": "fakes/lines"},
    "trainer": {"use": "fakes/simulated"},
    "rewards": [{"use": "fakes/checked"}],
    "limits": {"turns": LOOKS + 2},
}
RAY = {"use": "ray/ray", "workers": WORKERS, "episodes_per_worker": 128}


class Side:
    """One executor of one run, started."""

    def __init__(self, folder: Path, executor: Mapping[str, Any], turn_s: float) -> None:
        sampler = {"use": "fakes/learner", "turn_s": turn_s, "looks": LOOKS}
        config = structure({**RUN, "executor": executor, "sampler": sampler}, "benchmark")
        plugins = Plugins().load(select(config.plugins))
        RunDir(folder).create(to_data(config), plugins.manifest())
        self._assembly = Assembly(config, plugins.registry, folder)
        self._played = 0

    async def start(self) -> None:
        self._executor: Executor = self._assembly.get("executors")
        await self._executor.start()
        (self._assembly.run_dir / "weights/0.safetensors").write_bytes(b"any")
        await self._executor.publish(WeightsRef(0, "weights/0.safetensors", ""))
        self._tasks = self._assembly.get("tasks").tasks("train")

    async def play(self, episodes: int, at_once: int) -> float:
        """Seconds that so many episodes take; the n-th call on either side plays the same ones."""
        gate, first = asyncio.Semaphore(at_once), self._played
        self._played += episodes
        started = time.perf_counter()
        found = await asyncio.gather(*(self._episode(gate, number) for number in range(first, first + episodes)))
        assert all(found)
        return time.perf_counter() - started

    async def _episode(self, gate: asyncio.Semaphore, number: int) -> bool:
        task = self._tasks[number // GROUP % len(self._tasks)]
        async with gate:
            result = await self._executor.submit(request_for(task, SlotKey(task.id, number), 1, {}))
        return result.verdict.valid

    async def close(self) -> None:
        await self._assembly.close()


async def measure(folder: Path, turn_s: float, episodes: int, at_once: int, repeats: int) -> tuple[float, float]:
    """Median seconds through Ray and in one process."""
    async with AsyncExitStack() as stack:
        sides = []
        for name, executor in (("ray", RAY), ("inprocess", {"use": "core/inprocess"})):
            sides.append(Side(folder / f"{name}-{turn_s}", executor, turn_s))
            stack.push_async_callback(sides[-1].close)
            await sides[-1].start()
            await sides[-1].play(max(at_once, episodes // 4), at_once)
        spent: list[list[float]] = [[], []]
        for repeat in range(repeats):
            for number in (0, 1) if repeat % 2 else (1, 0):
                spent[number].append(await sides[number].play(episodes, at_once))
    return median(spent[0]), median(spent[1])


async def both(
    folder: Path, episodes: int, raw: int, at_once: tuple[int, int], repeats: int
) -> tuple[float, float, float, float]:
    """Turns of 50 ms and turns that take no time, in one cluster."""
    cluster = Cluster(RayConfig(workers=4 * WORKERS))
    try:
        await cluster.open()
        slow = await measure(folder, 0.05, episodes, at_once[0], repeats)
        return *slow, *await measure(folder, 0.0, raw, at_once[1], repeats)
    finally:
        await cluster.close()


def main() -> int:
    options = parser(__doc__).parse_args()
    episodes, raw, repeats = (8, 8, 1) if options.quick else (768, 3000, 5)
    at_once = (4, 4) if options.quick else (64, 128)
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        ray_s, own_s, raw_s, own_raw_s = asyncio.run(both(Path(name), episodes, raw, at_once, repeats))
    turns = f"{WORKERS} workers, 1 replica"
    rows = [
        Row(
            f"{episodes:,} episodes, {at_once[0]} at once, turns of 50 ms ({turns})",
            ray_s,
            "s",
            own_s,
            "core/inprocess",
        ),
        Row("more wall time than in one process", 100 * (ray_s / own_s - 1), "%", target="ours <= 30"),
        Row(f"raw control plane, {at_once[1]} at once ({turns})", raw / raw_s, "episodes/s", target="ours >= 300"),
        Row("the same in one process, without messages", raw / own_raw_s, "episodes/s"),
    ]
    return Results("ray_executor", "Episodes as Ray actors", rows).finish(options)


if __name__ == "__main__":
    sys.exit(main())
