"""What every executor owes: episodes end as results, whatever happens inside them; closing is safe twice."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from composer_core.assembly import Assembly
from composer_core.config import structure, to_data
from composer_core.evaluate import request_for
from composer_core.plugins import Plugins, select
from composer_core.protocols import BuildContext, Executor, Store
from composer_core.rundir import RunDir
from composer_core.traces import decode
from composer_core.types import EpisodeRequest, Outcome, SlotKey, WeightsRef

RUN = {
    "name": "contract",
    "plugins": ["fakes"],
    "tasks": {"use": "fakes/sums"},
    "sandbox": {"use": "fakes/memory"},
    "tools": {"use": ["fakes/read", "fakes/write", "fakes/done"]},
    "model": {"use": "fakes/bytes"},
    "renderer": {"use": "fakes/lines"},
    "sampler": {"use": "fakes/learner"},
    "samplers": {"broken": {"use": "fakes/learner", "void_share": 1.0}},
    "trainer": {"use": "fakes/simulated"},
    "rewards": [{"use": "fakes/checked"}],
}
"""A run of public fakes; its sampler "broken" raises at each attempt's first turn."""


class ExecutorContract(ABC):
    """Name your subclass `Test...` and override `build`; nothing else is needed.

    An executor is built inside a run, so the suite assembles one of public fakes, in a run folder as `train` makes it.
    """

    assembly: Assembly
    context: BuildContext
    """Of that run; a test of your own may take "parts", "stores" or "samplers" from it."""

    @abstractmethod
    def build(self, context: BuildContext) -> Executor:
        """A fresh executor of this run, not yet started."""

    @pytest.fixture(autouse=True)
    def _run_of_fakes(self, tmp_path: Path) -> None:
        config = structure(RUN, "the contract's run")
        plugins = Plugins().load(select(config.plugins))
        RunDir(tmp_path / "run").create(to_data(config), plugins.manifest())
        self.assembly = Assembly(config, plugins.registry, tmp_path / "run")
        self.context = self.assembly.build_context()

    def request(self, attempt: int, *, broken: bool = False) -> EpisodeRequest:
        """An attempt at a task of the run; a broken one makes its sampler raise."""
        tasks = self.context.get("tasks").tasks("train")
        task = tasks[attempt % len(tasks)]
        request = request_for(task, SlotKey(task.id, attempt), 1, {})
        return evolve(request, sampler="broken") if broken else request

    def weights(self, version: int) -> WeightsRef:
        """Weights that the run's sampler can load."""
        uri = f"weights/{version}.safetensors"
        (self.context.run_dir / uri).write_bytes(b"any")
        return WeightsRef(version, uri, "")

    def run(self, main: Callable[[Executor, Store], Awaitable[Any]]) -> Any:
        """Play `main` with a started executor and the store that its workers write to; close it whatever happens."""

        async def whole() -> Any:
            executor = self.build(self.context)
            try:
                await executor.start()
                return await asyncio.wait_for(main(executor, self.context.get("stores")), 60)
            finally:
                await executor.close()
                await executor.close()
                await self.assembly.close()

        return asyncio.run(whole())

    def test_an_episode_ends_as_a_result_whose_trace_was_written(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            await executor.publish(self.weights(0))
            result = await executor.submit(self.request(0))
            assert result.verdict.outcome in (Outcome.SOLVED, Outcome.FAILED)
            assert result.trace is not None
            trace = decode(store.get(result.trace.uri))
            assert trace.key == result.key
            assert trace.sampled_tokens() == result.stats["tokens"] > 0

        self.run(main)

    def test_a_sampler_that_breaks_makes_the_episode_void_and_nothing_raises(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            result = await executor.submit(self.request(1, broken=True))
            assert result.verdict.outcome is Outcome.VOID
            assert result.verdict.cause == "sampler"
            assert [fault.plugin for fault in result.faults] == ["fakes/learner"]

        self.run(main)

    def test_many_episodes_at_once_all_end(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            found = await asyncio.gather(*(executor.submit(self.request(attempt)) for attempt in range(32)))
            assert len({result.key for result in found}) == 32
            assert all(result.verdict.valid for result in found)

        self.run(main)

    def test_published_versions_reach_the_tokens(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            await executor.publish(self.weights(7))
            result = await executor.submit(self.request(2))
            assert result.oldest_version == 7

        self.run(main)

    def test_cancelled_episodes_give_their_places_back(self) -> None:
        """Wherever they were: waiting for a place, or somewhere inside."""

        async def main(executor: Executor, store: Store) -> None:
            for turns in range(12):
                running = [asyncio.ensure_future(executor.submit(self.request(attempt))) for attempt in range(40)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
            found = await asyncio.gather(*(executor.submit(self.request(attempt)) for attempt in range(40, 44)))
            assert all(result.verdict.valid for result in found)

        self.run(main)

    def test_stats_tell_the_samplers_counters(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            result = await executor.submit(self.request(3))
            assert executor.stats()["sampler/tokens"] == result.stats["tokens"]

        self.run(main)

    def test_there_is_a_place_for_an_episode_from_the_start_on(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            assert executor.places() >= 1

        self.run(main)

    def test_the_runs_trainer_is_reached_through_it(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            path = self.context.run_dir / "weights" / "1.safetensors"
            await executor.trainer().export(path)
            assert path.read_bytes()

        self.run(main)
