"""The controller's side without a cluster: who waits, what comes too late or takes too long, where ranks meet."""

import asyncio
import socket
import threading

import pytest

from composer_core import BuildContext
from composer_core.errors import WorkLost
from composer_core.evaluate import request_for
from composer_core.events import EpisodeStarted, FaultRecorded
from composer_core.trees import TreeRef
from composer_core.types import EpisodeResult, Fault, GradingRef, Outcome, SlotKey, Task, TaskView, Verdict, WeightsRef
from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.executor import RayExecutor
from composer_plugin_ray.line import Numbered
from composer_plugin_ray.rank import TrainerRank, interface
from composer_plugin_ray.ranks import TrainerGroup
from composer_plugin_ray.worker import WorkerNote

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


def test_what_ended_the_first_place_is_told_although_another_one_ends_after_it(tmp_path):
    async def main():
        made = executor(tmp_path)
        for cause in ("the first", "the second"):
            made.failed(WorkLost(cause))
        with pytest.raises(WorkLost, match="the first"):
            await made.submit(request_for(TASK, SlotKey("t", 0), 1, {}))

    asyncio.run(asyncio.wait_for(main(), 20))


def test_what_a_worker_tells_of_an_episode_that_was_given_up_comes_too_late(tmp_path):
    async def main():
        events = []
        made = RayExecutor(RayConfig(), BuildContext(tmp_path, emit=events.append))
        made._dispatch.replicas.add("replica-0.0")
        made._dispatch.workers.add("worker-0.0")
        line = made._lines["worker-0.0"] = Held()
        requests = [request_for(TASK, SlotKey("t", attempt), 1, {}) for attempt in range(2)]
        given_up, awaited = (asyncio.ensure_future(made.submit(request)) for request in requests)
        while len(line.running) < 2:
            await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        started = [EpisodeStarted(episode_id=one.key.episode_id, task_id="t", group=one.group) for one in requests]
        fault = FaultRecorded(fault=Fault("tool", "a/b", "of no episode"))
        made._figures.worker("worker-0.0")(WorkerNote((*started, fault), Numbered(1, {}), {}))
        assert events == [started[1], fault]
        line.go.set()
        assert (await awaited).verdict.valid

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


def test_ranks_meet_at_the_address_by_which_ray_knows_the_first_ones_node(monkeypatch):
    """What the host calls itself may resolve to 127.0.1.1, as it does on Debian."""
    nodes, started = iter(["10.9.8.7", "10.9.8.6"]), []

    class Rank:
        def __init__(self):
            self.name, self.address = "rank", ""

        async def found(self):
            self.address = next(nodes)
            return self

        async def call(self, method, *args):
            if method == "start":
                started.append(args)
            return {"port": 1234}.get(method)

        async def end(self, timeout_s):
            pass

    monkeypatch.setattr("composer_plugin_ray.ranks.start", lambda *args, **options: Rank())
    monkeypatch.setattr("composer_plugin_ray.ranks.here", lambda: "node")

    async def main():
        group = TrainerGroup(RayConfig(trainer_ranks=2), None)
        await group._started
        await group.end(1.0)

    asyncio.run(asyncio.wait_for(main(), 20))
    assert started == [(("10.9.8.7", 1234), "10.9.8.7"), (("10.9.8.7", 1234), "10.9.8.6")]


def test_a_batch_is_put_away_once_and_beside_the_event_loop_and_the_first_rank_answers(monkeypatch):
    batches, asked = [], []

    class Rank:
        address = "127.0.0.1"

        def __init__(self, name):
            self.name = name

        async def found(self):
            return self

        async def call(self, method, *args):
            if method == "ask":
                asked.append((self.name, *args))
            return self.name

        async def end(self, timeout_s):
            pass

    def put(value):
        assert threading.current_thread() is not threading.main_thread()
        batches.append(value)
        return "reference"

    monkeypatch.setattr("composer_plugin_ray.ranks.start", lambda name, *args, **options: Rank(name))
    monkeypatch.setattr("composer_plugin_ray.ranks.here", lambda: "node")
    monkeypatch.setattr("composer_plugin_ray.ranks.put", put)

    async def main():
        group = TrainerGroup(RayConfig(trainer_ranks=3), None)
        assert await group.step("batch") == "rank-0"
        await group.end(1.0)

    asyncio.run(asyncio.wait_for(main(), 20))
    assert batches == [("batch",)]
    assert asked == [(f"rank-{rank}", "step", "reference") for rank in range(3)]


def test_a_ranks_connections_are_of_the_interface_that_has_its_nodes_address(monkeypatch):
    environment = {}
    monkeypatch.setattr("os.environ", environment)
    monkeypatch.setattr(TrainerRank, "_build", lambda self: None)
    made = TrainerRank(None, 1, 2)
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    asyncio.run(made.start(("10.9.8.7", 1234), "127.0.0.1"))
    assert environment["GLOO_SOCKET_IFNAME"] == interface("127.0.0.1") == loopback
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"], environment["RANK"]) == ("10.9.8.7", "1234", "1")
    environment["GLOO_SOCKET_IFNAME"] = "ib0"
    asyncio.run(made.start(("10.9.8.7", 1234), "127.0.0.1"))
    assert environment["GLOO_SOCKET_IFNAME"] == "ib0", "what the user says counts"
    assert interface("192.0.2.1") == ""
    assert 0 < asyncio.run(made.port("127.0.0.1")) < 1 << 16
