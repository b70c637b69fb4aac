"""What every executor owes: episodes end as results, whatever happens inside them; closing is safe twice."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from composer_core.protocols import Executor, Store
from composer_core.traces import decode
from composer_core.types import EpisodeRequest, Outcome, WeightsRef


class ExecutorContract(ABC):
    """Subclass and override `build`, `request` and `weights`."""

    @abstractmethod
    def build(self) -> tuple[Executor, Store]:
        """A fresh executor, and the store its workers write traces to."""

    @abstractmethod
    def request(self, attempt: int, *, broken: bool = False) -> EpisodeRequest:
        """A request of the executor's tasks; a broken one makes its sampler raise."""

    @abstractmethod
    def weights(self, version: int) -> WeightsRef:
        """Weights that the executor's sampler can load."""

    def run(self, main: Callable[[Executor, Store], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            executor, store = self.build()
            await executor.start()
            try:
                return await main(executor, store)
            finally:
                await executor.close()
                await executor.close()

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
            assert result.faults

        self.run(main)

    def test_many_episodes_at_once_all_end(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            found = await asyncio.gather(*(executor.submit(self.request(attempt)) for attempt in range(32)))
            assert len({result.key for result in found}) == 32

        self.run(main)

    def test_published_versions_reach_the_tokens(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            await executor.publish(self.weights(7))
            result = await executor.submit(self.request(2))
            assert result.oldest_version == 7

        self.run(main)

    def test_a_cancelled_episode_stops(self) -> None:
        async def main(executor: Executor, store: Store) -> None:
            task = asyncio.ensure_future(executor.submit(self.request(3)))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.done()

        self.run(main)
