"""The controller's side without a cluster: who waits, and what becomes of a replica that takes too long."""

import asyncio

import pytest

from composer_core import BuildContext
from composer_core.errors import WorkLost
from composer_core.evaluate import request_for
from composer_core.trees import TreeRef
from composer_core.types import EpisodeResult, GradingRef, Outcome, SlotKey, Task, TaskView, Verdict, WeightsRef
from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.executor import RayExecutor

TASK = Task(TaskView(id="t", prompt="", workspace=TreeRef("0" * 64)), GradingRef("tests", "t"), "train")


class Held:
    """Stands for the line to a worker; its episodes end when the test says so."""

    def __init__(self):
        self.running, self.go = [], asyncio.Event()

    async def call(self, method, request, replica, again):
        self.running.append(request.key.attempt)
        await self.go.wait()
        return EpisodeResult(request.key, request.group, None, Verdict(Outcome.SOLVED))


def executor(tmp_path, **config):
    return RayExecutor(RayConfig(**config), BuildContext(tmp_path))


def test_what_finds_no_worker_waits_for_the_next_one_in_order_and_no_worker_gets_too_many(tmp_path):
    async def main():
        made = executor(tmp_path, workers=2, episodes_per_worker=2)
        made._dispatch.replicas.add("replica-0.0")
        assert made.places() == 4, "of the workers that are on their way too"
        asked = [request_for(TASK, SlotKey("t", attempt), 1, {}) for attempt in range(4)]
        running = [asyncio.ensure_future(made.submit(request)) for request in asked]
        lines = {}
        for name, expected in (("worker-0.0", [0, 1]), ("worker-1.1", [2, 3])):
            lines[name] = made._lines[name] = Held()
            made._dispatch.workers.add(name)
            made._turns.all()
            for _ in range(10):
                await asyncio.sleep(0)
            assert lines[name].running == expected
        for line in lines.values():
            line.go.set()
        assert all(result.verdict.valid for result in await asyncio.gather(*running))
        assert made.stats()["in_flight"] == 0

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_replica_that_does_not_load_in_time_is_killed_and_counts_as_lost(tmp_path):
    class Stuck:
        name, killed = "replica-0.0", 0

        async def call(self, method, weights):
            await asyncio.Event().wait()

        def kill(self):
            self.killed += 1

    async def main():
        made, remote = executor(tmp_path, publish_timeout_s=0.01), Stuck()
        made._weights = WeightsRef(3, "weights/3.safetensors", "")
        with pytest.raises(WorkLost, match=r"replica-0.0 has not loaded"):
            await made._current(remote)  # its place is filled anew, as after any other loss
        assert remote.killed
        made._replicas.members[remote.name] = remote
        await made.publish(WeightsRef(4, "weights/4.safetensors", ""))

    asyncio.run(asyncio.wait_for(main(), 20))
