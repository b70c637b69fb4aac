import asyncio

import pytest

from composer_testing.fakes.clock import FakeClock


def test_time_moves_only_when_told():
    clock = FakeClock(5.0)
    assert clock.time() == clock.time() == 5.0
    clock.advance(2.5)
    assert clock.time() == 7.5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_run_wakes_sleepers_at_their_own_times_and_lets_them_sleep_again():
    clock, seen = FakeClock(0.0), []

    async def tick(name, every_s, times):
        for _ in range(times):
            await clock.sleep(every_s)
            seen.append((clock.time(), name))

    async def main():
        tasks = [asyncio.create_task(tick("a", 2.0, 3)), asyncio.create_task(tick("b", 3.0, 2))]
        await clock.run(5.0)
        assert seen == [(2.0, "a"), (3.0, "b"), (4.0, "a")]
        assert clock.sleeping() == 2
        await clock.run(1.0)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert seen[3:] == [(6.0, "b"), (6.0, "a")]
    assert clock.time() == 6.0


def test_advance_wakes_those_who_are_due_and_no_others():
    async def main():
        clock = FakeClock()
        due, later = (asyncio.create_task(clock.sleep(seconds)) for seconds in (1.0, 9.0))
        await asyncio.sleep(0)
        clock.advance(1.0)
        await due
        assert not later.done()
        later.cancel()
        await asyncio.gather(later, return_exceptions=True)
        assert clock.sleeping() == 0

    asyncio.run(main())


def test_sleep_of_nothing_returns_at_once():
    asyncio.run(FakeClock().sleep(0))
