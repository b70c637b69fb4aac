"""The trainer as a group of processes: every rank is asked for everything, rank 0 answers.

Nothing is started anew here: what is in the weights since the last commit is gone with a rank, so its loss ends the
run, and a resumed run goes on from that commit. A batch is put into the object store once, whatever the ranks.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from composer_core import Column
from composer_core.errors import TrainerError, WorkLost
from composer_core.types import StepStats, TrainBatch
from composer_plugin_ray.blueprint import Blueprint
from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.rank import TrainerRank
from composer_plugin_ray.remote import Remote, here, late, put, start


class TrainerGroup:
    """`protocols.Trainer` of the controller. The ranks start at once, and whatever is asked first waits for them."""

    def __init__(self, config: RayConfig, blueprint: Blueprint) -> None:
        self._config, self._blueprint = config, blueprint
        self.remotes: list[Remote] = []
        self._started = asyncio.ensure_future(self._start())

    async def _start(self) -> None:
        ranks = self._config.trainer_ranks
        resources = {"num_cpus": self._config.rank_cpus, "num_gpus": self._config.rank_gpus}
        for rank in range(ranks):
            what = (TrainerRank, self._blueprint, rank, ranks)  # beside the controller, whose loss ends the run too
            self.remotes.append(start(f"rank-{rank}", resources, *what, node=here(), soft=True))
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                self.remotes = list(await asyncio.gather(*(remote.found() for remote in self.remotes)))
                first = self.remotes[0]
                meeting = first.address, await first.call("port", first.address)
                await asyncio.gather(*(remote.call("start", meeting, remote.address) for remote in self.remotes))
        except TimeoutError:
            raise late("a rank of the trainer", self._config.start_timeout_s) from None

    async def _all(self, method: str, *args: Any) -> Any:
        try:
            await asyncio.shield(self._started)
            shared = await asyncio.to_thread(put, args)
            asked = [asyncio.ensure_future(rank.call("ask", method, shared)) for rank in self.remotes]
            try:
                return (await asyncio.gather(*asked))[0]
            finally:
                for one in asked:
                    one.cancel()
        except WorkLost as error:
            raise TrainerError(
                f"a process of the trainer vanished during {method!r}",
                found=error.message,
                fix="resume the run; it goes on from its last commit",
            ) from error

    async def begin(self, stage: str, settings: Any) -> None:
        await self._all("begin", stage, settings)

    async def step(self, batch: TrainBatch) -> StepStats:
        found: StepStats = await self._all("step", batch)
        return found

    async def save(self, folder: Path) -> None:
        await self._all("save", folder)

    async def load(self, folder: Path) -> None:
        await self._all("load", folder)

    async def export(self, path: Path) -> None:
        await self._all("export", path)

    async def logprobs(self, batch: TrainBatch) -> list[Column]:
        found: list[Column] = await self._all("logprobs", batch)
        return found

    async def close(self) -> None:
        """Its processes are the executor's to end."""

    async def end(self, timeout_s: float) -> None:
        """End the ranks, whatever became of their start."""
        self._started.cancel()
        await asyncio.gather(self._started, return_exceptions=True)
        remotes, self.remotes = self.remotes, []
        await asyncio.gather(*(rank.end(timeout_s) for rank in remotes))
