"""The executor keeps its kind's contract, and the bound it was given."""

import asyncio

import pytest

from composer_core.types import Outcome
from composer_plugin_my_name.executor import MyNameExecutor
from composer_plugin_my_name.plugin import MyNameConfig
from composer_testing.contracts.executors import ExecutorContract
from composer_testing.contracts.hook_modules import HookModuleContract


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(ExecutorContract):
    def build(self, context):
        return MyNameExecutor(MyNameConfig(max_concurrent=4), context)

    def test_no_more_episodes_than_allowed_are_in_flight(self):
        async def main(executor, store):
            running = {"now": 0, "most": 0}
            sampler = self.context.get("samplers")["policy"]
            generate = sampler.generate

            async def counted(*args):
                running["now"] += 1
                running["most"] = max(running.values())
                await asyncio.sleep(0.001)
                running["now"] -= 1
                return await generate(*args)

            sampler.generate = counted
            await asyncio.gather(*(executor.submit(self.request(attempt)) for attempt in range(24)))
            return running["most"]

        assert self.run(main) == 4

    def test_a_trace_that_cannot_be_written_makes_the_episode_void(self, monkeypatch: pytest.MonkeyPatch):
        def full(key, data):
            raise OSError("no space left")

        async def main(executor, store):
            monkeypatch.setattr(store, "put", full)
            return await executor.submit(self.request(0))

        result = self.run(main)
        assert (result.verdict.outcome, result.verdict.cause, result.trace) == (Outcome.VOID, "host", None)
        assert "no space left" in result.faults[0].error
