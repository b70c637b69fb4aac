"""Keys: worked on once, answered as often as asked, undone when nobody wants it."""

from __future__ import annotations

import asyncio

import pytest

from composer_plugin_server.operations import Answer, Operations


def operations(**given) -> Operations:
    return Operations(**{"keep_s": 60.0, "keep_bytes": 1000, "grace_s": 0.05, **given})


class Work:
    """Counts its starts, ends when it is told to."""

    def __init__(self) -> None:
        self.starts, self.undone, self.cancelled = 0, 0, 0
        self.go = asyncio.Event()

    async def __call__(self) -> Answer:
        self.starts += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Answer(200, b"x" * 100, self.undo)

    async def undo(self) -> None:
        self.undone += 1


async def begun(work: Work) -> None:
    while not work.starts:
        await asyncio.sleep(0)


def test_a_key_that_is_sent_twice_is_worked_on_once_while_it_runs_and_after():
    async def main():
        known, work = operations(), Work()
        asked = [asyncio.ensure_future(known.once("lease", "key", work)) for _ in range(3)]
        await begun(work)
        work.go.set()
        first, *others = await asyncio.gather(*asked)
        assert all(one is first for one in [*others, await known.once("lease", "key", work)])
        assert (work.starts, known.replayed) == (1, 3)

    asyncio.run(main())


def test_another_lease_with_the_same_key_gets_nothing_of_it():
    async def main():
        known, work = operations(), Work()
        work.go.set()
        await known.once("one", "key", work)
        await known.once("two", "key", work)
        assert work.starts == 2
        known.cancel("two", "another")
        assert work.undone == 0

    asyncio.run(main())


def test_a_caller_that_was_cut_off_comes_back_in_time():
    async def main():
        known, work = operations(grace_s=5.0), Work()
        asked = asyncio.ensure_future(known.once("lease", "key", work))
        await begun(work)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        again = asyncio.ensure_future(known.once("lease", "key", work))
        await asyncio.sleep(0)
        work.go.set()
        assert (await again).status == 200
        assert (work.starts, work.cancelled, work.undone) == (1, 0, 0)

    asyncio.run(main())


def test_a_caller_that_does_not_come_back_has_its_work_cancelled():
    async def main():
        known, work = operations(), Work()
        asked = asyncio.ensure_future(known.once("lease", "key", work))
        await begun(work)
        asked.cancel()
        await asyncio.sleep(0.2)
        assert (work.cancelled, known.abandoned) == (1, 1)

    asyncio.run(main())


def test_what_was_made_for_a_caller_that_never_heard_of_it_is_undone():
    async def main():
        known, work = operations(), Work()
        asked = asyncio.ensure_future(known.once("lease", "key", work))
        await begun(work)
        asked.cancel()
        work.go.set()
        await asyncio.sleep(0.2)
        assert work.undone == 1

    asyncio.run(main())


@pytest.mark.parametrize("ended", [False, True])
def test_a_caller_that_says_that_it_gave_up_has_it_ended_or_undone(ended):
    async def main():
        known, work = operations(), Work()
        asked = asyncio.ensure_future(known.once("lease", "key", work))
        await begun(work)
        if ended:
            work.go.set()
            await asked
        known.cancel("lease", "key")
        (found,) = await asyncio.gather(asked, return_exceptions=True)
        assert ended or "cancelled" in str(found)
        await asyncio.sleep(0)
        assert (work.cancelled, work.undone) == ((0, 1) if ended else (1, 0))

    asyncio.run(main())


def test_answers_are_kept_up_to_a_number_of_bytes_and_seconds():
    async def main():
        known, work = operations(keep_bytes=250), Work()
        work.go.set()
        for key in "abcd":
            await known.once("lease", key, work)
        await known.once("lease", "d", work)
        assert work.starts == 4, "the newest are kept"
        await known.once("lease", "a", work)
        assert work.starts == 5, "the oldest are not"
        known.keep_s = 0.0
        known.forget()
        await known.once("lease", "a", work)
        assert work.starts == 6

    asyncio.run(main())
