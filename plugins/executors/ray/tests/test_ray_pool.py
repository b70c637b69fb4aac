"""Places and the processes that hold them, without Ray: who comes, who goes, and when it is too often."""

import asyncio

import pytest

from composer_core.errors import ComposerError, WorkLost
from composer_plugin_ray.figures import added, by_process
from composer_plugin_ray.pool import Pool
from composer_plugin_ray.restarts import HOUR_S, Restarts
from composer_plugin_ray.turns import Turns


class Process:
    """A process that a test ends."""

    def __init__(self, name):
        self.name, self.ended, self.asked = name, asyncio.Event(), []
        self.hangs = False

    async def gone(self):
        await self.ended.wait()
        return WorkLost(f"process {self.name} is gone")

    async def call(self, method, *args):
        if self.ended.is_set():
            raise WorkLost(f"process {self.name} is gone")
        if self.hangs:
            await asyncio.Event().wait()
        self.asked.append(method)

    async def found(self):
        await self.call("found")
        return self

    async def end(self, timeout_s):
        self.ended.set()

    def kill(self):
        self.ended.set()


class Owner:
    """Notes what it is told; `fails` many of the next starts fail because the process vanishes at once."""

    def __init__(self):
        self.told, self.fails, self.how, self.error, self.losses = [], 0, None, None, 0
        self.broken = {}
        """What happens when a process of that name joins."""

    async def ready(self, pool, name, place):
        if self.fails:
            self.fails -= 1
            raise self.how or WorkLost(f"process {name} is gone")
        return Process(name)

    async def joined(self, pool, remote):
        if remote.name in self.broken:
            raise self.broken[remote.name]
        self.told.append(("joined", remote.name))

    async def vanished(self, pool, name, error):
        self.told.append(("vanished", name))

    def lost(self, error):
        self.losses += 1

    def failed(self, error):
        self.error = error


def played(main, most=5, answer_timeout_s=20.0, fails=0, how=None):
    async def whole():
        owner = Owner()
        owner.fails, owner.how = fails, how
        pool = Pool("worker", 2, owner, Restarts(most), answer_timeout_s)
        await pool.open()
        try:
            await asyncio.wait_for(main(pool, owner), 20)
        finally:
            await pool.close(1.0)

    asyncio.run(whole())


async def until(seen):
    while not seen():
        await asyncio.sleep(0.001)


def test_who_vanishes_is_replaced_at_its_place_under_a_new_name():
    async def main(pool, owner):
        assert sorted(pool.members) == ["worker-0.0", "worker-1.1"]
        pool.members["worker-1.1"].ended.set()
        await until(lambda: "worker-1.2" in pool.members)
        assert owner.told[-2:] == [("vanished", "worker-1.1"), ("joined", "worker-1.2")]

    played(main)


def test_a_first_process_that_vanishes_while_it_starts_is_replaced_too():
    async def main(pool, owner):
        assert len(pool.members) == 2
        assert sum(pool.restarted().values()) == 2, "what was started in vain counts"
        assert owner.losses == 2

    played(main, fails=2)


def test_what_several_wait_for_is_lost_once():
    """Workers of one node wait for one environment server."""
    server = WorkLost("process environment-0 is gone")

    async def main(pool, owner):
        assert len(pool.members) == 2
        assert sum(pool.restarted().values()) == 2
        assert owner.losses == 1

    played(main, most=1, fails=2, how=server)


def test_first_processes_that_always_vanish_are_told():
    with pytest.raises(ComposerError, match="4 processes of the run were lost within an hour"):
        played(lambda pool, owner: pytest.fail("it has opened"), most=3, fails=100)


def test_a_successor_that_vanishes_while_it_starts_is_replaced_too():
    async def main(pool, owner):
        owner.fails = 2
        pool.members["worker-0.0"].ended.set()
        await until(lambda: "worker-0.4" in pool.members)
        assert [name for what, name in owner.told if what == "vanished"] == ["worker-0.0"], "it was told once"
        assert owner.losses == 3

    played(main)


def test_a_successor_that_vanishes_while_it_joins_is_no_member_and_is_replaced():
    async def main(pool, owner):
        owner.broken["worker-0.2"] = WorkLost("process worker-0.2 is gone")
        pool.members["worker-0.0"].ended.set()
        await until(lambda: "worker-0.3" in pool.members)
        assert sorted(pool.members) == ["worker-0.3", "worker-1.1"]
        assert pool.restarted() == {"worker-0.3": 2, "worker-1.1": 0}, "what was started in vain counts"

    played(main)


def test_a_place_that_cannot_be_filled_for_a_reason_nobody_foresaw_is_told():
    async def main(pool, owner):
        owner.broken["worker-0.2"] = RuntimeError("no such thing")
        pool.members["worker-0.0"].ended.set()
        await until(lambda: owner.error)
        assert "RuntimeError: no such thing" in str(owner.error)

    played(main)


def test_too_many_losses_are_told_and_nothing_more_is_started():
    async def main(pool, owner):
        owner.fails = 100
        pool.members["worker-0.0"].ended.set()
        await until(lambda: owner.error)
        assert "4 processes of the run were lost within an hour" in str(owner.error)
        assert sorted(pool.members) == ["worker-1.1"]

    played(main, most=3)


def test_a_member_that_is_found_gone_serves_no_more_before_its_watch_knows():
    async def main(pool, owner):
        one = pool.members["worker-0.0"]
        one.ended.set()
        await pool.check("worker-0.0")
        assert "worker-0.0" not in pool.members
        await pool.tell_all("use")
        assert one.asked == []
        await until(lambda: len(pool.members) == 2)
        assert [name for what, name in owner.told if what == "vanished"] == ["worker-0.0"]

    played(main)


@pytest.mark.parametrize("asked", ["check", "tell_all"])
def test_a_member_that_never_answers_is_ended_and_replaced(asked):
    async def main(pool, owner):
        one, other = pool.members["worker-0.0"], pool.members["worker-1.1"]
        one.hangs = True
        await (pool.check(one.name) if asked == "check" else pool.tell_all("use"))
        assert one.ended.is_set()
        await until(lambda: "worker-0.2" in pool.members)
        assert [name for what, name in owner.told if what == "vanished"] == ["worker-0.0"]
        assert pool.members["worker-1.1"] is other

    played(main, answer_timeout_s=0.05)


def test_losses_of_an_hour_ago_are_forgotten():
    now = 0.0
    restarts = Restarts(2, clock=lambda: now)
    lost = WorkLost("process worker-0.0 is gone")
    for _ in range(2):
        restarts.spend(lost)
    now = HOUR_S + 1
    restarts.spend(lost)
    restarts.spend(lost)
    with pytest.raises(ComposerError, match="3 processes"):
        restarts.spend(lost)


def test_who_waits_is_called_in_order_and_a_call_to_one_that_left_goes_to_the_next():
    async def main():
        turns, came = Turns(), []

        async def wait(name):
            await turns.wait()
            came.append(name)

        tasks = [asyncio.ensure_future(wait(name)) for name in "abcd"]
        await asyncio.sleep(0)
        turns.next()
        await asyncio.sleep(0)
        turns.next()
        tasks[1].cancel()  # it was called, and leaves instead
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        await asyncio.sleep(0)
        assert came == ["a", "c"]
        turns.all()
        await tasks[3]

    asyncio.run(main())


def test_counters_are_added_and_medians_are_not():
    rows = [{"tokens": 3.0, "exec_p50_ms": 2.0, "version": 4.0}, {"tokens": 4.0, "exec_p50_ms": 1.0, "version": 5.0}]
    assert added(rows) == {"tokens": 7.0, "exec_p50_ms": 2.0, "version": 5.0}


def test_what_is_a_processs_own_is_told_of_those_that_live_one_after_another():
    told = by_process(pid={"worker-0.0": 7, "replica-0.1": 8}, version={"replica-0.1": 3, "replica-0.0": 2})
    assert list(told.items()) == [
        ("worker/worker-0.0/pid", 7.0),
        ("replica/replica-0.1/pid", 8.0),
        ("replica/replica-0.1/version", 3.0),
    ]
