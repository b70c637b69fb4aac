"""The built-in executor and context keep their contracts, on fakes."""

import asyncio
import time
from pathlib import Path

from composer_core.config import InProcessConfig
from composer_core.context import Plain
from composer_core.executor import InProcessExecutor
from composer_core.protocols import BuildContext
from composer_core.records import NoConfig
from composer_testing.contracts.contexts import ContextContract
from composer_testing.contracts.executors import ExecutorContract


class TestPlain(ContextContract):
    def build(self):
        return Plain(NoConfig(), BuildContext(Path()))


class TestInProcess(ExecutorContract):
    def build(self, context):
        return InProcessExecutor(InProcessConfig(), context)

    def test_it_tells_how_late_its_event_loop_is(self):
        async def main(executor, store):
            await asyncio.sleep(0)
            time.sleep(0.3)
            await asyncio.sleep(0.1)
            return executor.stats()["loop_lag_p99_ms"]

        assert self.run(main) >= 200

    def test_it_has_as_many_places_as_episodes_may_run_at_once(self):
        async def main(executor, store):
            return executor.places()

        assert self.run(main) == InProcessConfig().max_concurrent


class TestInProcessOneByOne(ExecutorContract):
    def build(self, context):
        return InProcessExecutor(InProcessConfig(max_concurrent=1), context)
