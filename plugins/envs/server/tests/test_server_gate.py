"""Admission: room, starts, order, pressure, and what the refused are told."""

from __future__ import annotations

import asyncio

import pytest

from composer_core.errors import NoCapacity
from composer_plugin_server.gate import Claim, Gate
from composer_plugin_server.machine import Machine, Pressure
from composer_plugin_server.settings import Admission

MIB = 1 << 20
CALM = Pressure(100 * MIB, 90 * MIB, 2, 0.0, 0.0, 0.0, 0.0, 0.0)


def gate(pressure: Pressure = CALM, **limits) -> Gate:
    given = {"sandboxes": 4, "starts": 4, "memory_bytes": 100 * MIB, "free_bytes": 0, **limits}
    return Gate(Admission(**given), pressure=pressure)


def one(bytes_: int = MIB) -> Claim:
    return Claim(1, bytes_)


async def queued(gate: Gate, count: int, claim: Claim | None = None) -> list[asyncio.Task]:
    tasks = []
    for _ in range(count):
        tasks.append(asyncio.ensure_future(gate.enter(claim or one(), 30)))
        await settled()
    return tasks


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def let_in(tasks) -> list[int]:
    return [number for number, task in enumerate(tasks) if task.done()]


def test_more_than_fit_wait_and_the_longest_waiting_is_let_in_first():
    async def main():
        room = gate(sandboxes=2)
        tasks = await queued(room, 5)
        assert let_in(tasks) == [0, 1]
        for number in (0, 1, 2):
            tasks[number].result().drop()
            await settled()
            assert let_in(tasks) == list(range(number + 3))
        assert room.waits_s and room.live == 2

    asyncio.run(main())


def test_starts_are_capped_apart_from_what_runs():
    async def main():
        room = gate(sandboxes=100, starts=2)
        tasks = await queued(room, 5)
        assert (let_in(tasks), room.live, room.starting) == ([0, 1], 2, 2)
        tasks[0].result().made()
        await settled()
        assert (let_in(tasks), room.live, room.starting) == ([0, 1, 2], 3, 2)

    asyncio.run(main())


def test_memory_is_counted_and_given_back():
    async def main():
        room = gate(sandboxes=100)
        tasks = await queued(room, 3, one(40 * MIB))
        assert let_in(tasks) == [0, 1] and room.blocked(one(40 * MIB)) == "memory"
        tasks[1].result().leave()
        await settled()
        assert let_in(tasks) == [0, 1, 2]
        for task in tasks:
            task.result().drop()
        assert (room.live, room.starting, room.memory_bytes) == (0, 0, 0)

    asyncio.run(main())


def test_a_large_fork_is_not_overtaken_by_small_creations():
    async def main():
        room = gate(sandboxes=4)
        held = await room.enter(Claim(2, 2 * MIB), 1)
        large = (await queued(room, 1, Claim(3, 3 * MIB)))[0]
        small = (await queued(room, 1))[0]
        assert not large.done() and not small.done(), "one more would fit, but somebody is before it"
        held.leave()
        await settled()
        assert large.done() and small.done() is False
        large.result().leave()
        await settled()
        assert small.done()

    asyncio.run(main())


def test_whoever_gives_up_frees_its_place_and_room():
    async def main():
        room = gate(sandboxes=1)
        first = await room.enter(one(), 1)
        tasks = await queued(room, 3)
        tasks[0].cancel()
        await settled()
        assert room.waiting == 2
        first.leave()
        tasks[1].cancel()  # in the very moment in which it is let in
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        assert tasks[2].done() or await asyncio.wait_for(tasks[2], 1)
        assert (room.live, room.waiting) == (1, 0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("limits", "claim", "reason"),
    [
        ({"sandboxes": 1}, one(), "sandboxes"),
        ({"sandboxes": 9}, one(60 * MIB), "memory"),
        ({"sandboxes": 9, "starts": 1}, one(), "starts"),
        ({"sandboxes": 1, "queue": 0}, one(), "sandboxes"),
        ({}, one(101 * MIB), "too large"),
    ],
)
def test_the_refused_are_told_why_and_when_to_come_back(limits, claim, reason):
    async def main():
        room = gate(**limits)
        if reason != "too large":
            await room.enter(claim, 0)
        with pytest.raises(NoCapacity, match=reason) as refused:
            await room.enter(claim, 0.01)
        assert 1 <= refused.value.fields["retry_after_s"] <= 60 and refused.value.retryable
        assert room.refused == {reason: 1}

    asyncio.run(main())


def test_a_full_line_refuses_at_once():
    async def main():
        room = gate(sandboxes=1, queue=2)
        await queued(room, 3)
        with pytest.raises(NoCapacity, match="queue full"):
            await room.enter(one(), 30)

    asyncio.run(main())


def test_memory_pressure_stops_starts_and_cpu_pressure_leaves_one_at_a_time():
    async def main():
        room = gate(pressure=Pressure(1, 1, 1, 0.0, memory_full=10.0), sandboxes=9)
        tasks = await queued(room, 3)
        assert let_in(tasks) == []
        room.pressure = Pressure(1, 1, 1, 0.0, memory_full=0.0, cpu_some=95.0)
        room.pump()
        await settled()
        assert let_in(tasks) == [0] and room.blocked(one()) == "cpu pressure"
        tasks[0].result().made()
        await settled()
        assert let_in(tasks) == [0, 1]

    asyncio.run(main())


def test_too_little_free_memory_stops_starts():
    async def main():
        room = gate(pressure=Pressure(100, 10, 1, 0.0), free_bytes=11)
        with pytest.raises(NoCapacity, match="memory pressure"):
            await room.enter(one(), 0)

    asyncio.run(main())


def test_a_pool_gets_only_room_that_nobody_waits_for():
    async def main():
        room = gate(sandboxes=2, starts=3)
        assert room.enter_now(one()) is not None
        await room.enter(one(), 0)
        tasks = await queued(room, 1)
        assert room.enter_now(one()) is None, "somebody waits"
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert room.enter_now(one()) is None, "nor is there any"

    asyncio.run(main())


def test_closing_refuses_those_who_wait():
    async def main():
        room = gate(sandboxes=1)
        tasks = await queued(room, 2)
        room.close()
        with pytest.raises(NoCapacity, match="closing"):
            await tasks[1]
        with pytest.raises(NoCapacity, match="closing"):
            await room.enter(one(), 1)

    asyncio.run(main())


# --- the machine --------------------------------------------------------------------------------------------------


def test_pressure_is_read_where_the_kernel_tells_it(tmp_path):
    pressure = tmp_path / "proc/pressure"
    pressure.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  1000 kB\nMemAvailable:   400 kB\n")
    (tmp_path / "proc/loadavg").write_text("1.50 0 0 1/1 1\n")
    (pressure / "memory").write_text(
        "some avg10=2.50 avg60=0 avg300=0 total=1\nfull avg10=1.25 avg60=0 avg300=0 total=1\n"
    )
    (pressure / "cpu").write_text("some avg10=70.00 avg60=0 avg300=0 total=1\n")
    look = Machine(tmp_path).look()
    assert (look.total_bytes, look.available_bytes, look.load) == (1024_000, 409_600, 1.5)
    assert (look.memory_some, look.memory_full, look.cpu_some, look.io_full) == (2.5, 1.25, 70.0, None)


@pytest.mark.parametrize("limit", ["sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"])
def test_the_limit_of_a_control_group_counts_where_it_is_lower(tmp_path, limit):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  1000 kB\nMemAvailable:   400 kB\n")
    path = tmp_path / limit
    path.parent.mkdir(parents=True)
    for text, total in (("500000", 500_000), ("max", 1024_000), ("9223372036854771712", 1024_000)):
        path.write_text(f"{text}\n")
        assert Machine(tmp_path).look().total_bytes == total


def test_what_is_left_to_the_machine_is_of_its_cores_and_memory():
    given = Admission().on(Pressure(1000, 900, 4, 0.0))
    assert (given.sandboxes, given.starts, given.memory_bytes) == (256, 8, 800)
    assert Admission(sandboxes=3, starts=1, memory_bytes=5).on(CALM) == Admission(sandboxes=3, starts=1, memory_bytes=5)


def test_this_machine_is_looked_at():
    look = Machine().look()
    assert 0 < look.available_bytes <= look.total_bytes * 64
