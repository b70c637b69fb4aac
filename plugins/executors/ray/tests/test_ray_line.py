"""Many calls over few messages, without Ray: a line and a desk in one process, and what happens when one goes."""

import asyncio
import pickle

import pytest

from composer_core.errors import SamplerError, WorkLost
from composer_plugin_ray.line import Desk, Line, Numbered, newer


class Works:
    """What a desk does, and what it was asked."""

    def __init__(self):
        self.running, self.ended, self.cancelled = 0, [], []

    async def wait(self, client, name, seconds):
        self.running += 1
        try:
            await asyncio.sleep(seconds)
            self.ended.append(name)
            return client, name
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.running -= 1

    async def fail(self, client):
        raise SamplerError("no such weights", where="here", fix="publish them")

    async def break_(self, client):
        raise OSError("a plain error")


class Wire:
    """A desk, its line, and the messages between them as they would travel."""

    def __init__(self, note=lambda: None):
        self.works = Works()
        methods = {"wait": self.works.wait, "fail": self.works.fail, "break": self.works.break_}
        self.desk, self.exchanges, self.cut = Desk(methods, note), 0, None
        self.notes = []
        self.line = Line("me", self._exchange, self.notes.append)

    async def _exchange(self, batch):
        self.exchanges += 1
        told = pickle.loads(pickle.dumps(batch))
        await asyncio.sleep(0.001)
        answer = asyncio.ensure_future(self.desk.exchange(told))
        cut = asyncio.ensure_future(self.cut.wait()) if self.cut else None
        await asyncio.wait({answer, cut} if cut else {answer}, return_when=asyncio.FIRST_COMPLETED)
        if cut and cut.done():
            answer.cancel()
            raise WorkLost("process replica-0.0 is gone", who="ray/ray")
        if cut:
            cut.cancel()
        return pickle.loads(pickle.dumps(await answer))


def played(main, **more):
    async def whole():
        wire = Wire(**more)
        try:
            return await asyncio.wait_for(main(wire), 20)
        finally:
            await wire.line.close()
            await wire.desk.close()

    return asyncio.run(whole())


def test_every_call_gets_its_own_answer_and_they_share_messages():
    async def main(wire):
        found = await asyncio.gather(*(wire.line.call("wait", number, number % 7 / 1000) for number in range(500)))
        assert found == [("me", number) for number in range(500)]
        assert wire.exchanges < 100

    played(main)


def test_a_long_call_holds_up_no_short_one():
    async def main(wire):
        long = asyncio.ensure_future(wire.line.call("wait", "long", 60))
        for number in range(5):
            assert await wire.line.call("wait", number, 0) == ("me", number)
        assert not long.done()
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long

    played(main)


def test_a_cancelled_call_is_cancelled_at_the_desk():
    async def main(wire):
        call = asyncio.ensure_future(wire.line.call("wait", "given up", 60))
        while not wire.works.running:
            await asyncio.sleep(0.001)
        call.cancel()
        while wire.works.running:
            await asyncio.sleep(0.001)
        assert wire.works.cancelled == ["given up"]

    played(main)


def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing_at_the_desk():
    async def main(wire):
        call = asyncio.ensure_future(wire.line.call("wait", "given up", 60))
        await asyncio.sleep(0)  # it is ordered, and the order waits for this round's end
        call.cancel()
        assert await wire.line.call("wait", "next", 0)
        assert wire.works.cancelled == []
        assert [box.tasks for box in wire.desk._boxes.values()] == [{}]

    played(main)


def test_a_posted_call_is_done_though_nobody_waits():
    async def main(wire):
        wire.line.post("wait", "posted", 0)
        while wire.works.ended != ["posted"]:
            await asyncio.sleep(0.001)

    played(main)


def test_errors_arrive_with_what_they_say_and_others_as_text():
    async def main(wire):
        with pytest.raises(SamplerError) as told:
            await wire.line.call("fail")
        assert (told.value.message, told.value.fields["fix"]) == ("no such weights", "publish them")
        with pytest.raises(Exception, match="OSError: a plain error"):
            await wire.line.call("break")

    played(main)


def test_when_the_desks_process_goes_all_calls_are_lost_and_so_are_later_ones():
    async def main(wire):
        wire.cut = asyncio.Event()
        calls = [asyncio.ensure_future(wire.line.call("wait", number, 60)) for number in range(20)]
        while wire.works.running < 20:
            await asyncio.sleep(0.001)
        wire.cut.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in found] == [WorkLost] * 20
        assert len({id(error) for error in found}) == 20, "each is told by an error of its own"
        with pytest.raises(WorkLost, match=r"replica-0.0 is gone"):
            await wire.line.call("wait", "late", 0)

    played(main)


def test_calls_of_a_line_that_is_closed_say_why():
    async def main(wire):
        call = asyncio.ensure_future(wire.line.call("wait", "long", 60))
        while not wire.works.running:
            await asyncio.sleep(0.001)
        await wire.line.close(WorkLost("process replica-0.0 is gone"))
        with pytest.raises(WorkLost, match=r"process replica-0\.0 is gone"):
            await call

    played(main)


def test_a_client_that_is_gone_leaves_nothing_running():
    async def main(wire):
        call = asyncio.ensure_future(wire.line.call("wait", "orphan", 60))
        while not wire.works.running:
            await asyncio.sleep(0.001)
        await wire.desk.forget("me")
        assert not wire.works.running
        call.cancel()

    played(main)


def test_notes_come_with_answers_and_the_newest_counts():
    numbers = iter(range(1000))

    async def main(wire):
        await wire.line.call("wait", "any", 0)
        assert wire.notes
        old, new = Numbered(1, "old"), Numbered(2, "new")
        assert newer(None, old) is newer(old, Numbered(1, "late")) is old
        assert newer(old, new) is newer(new, old) is new

    played(main, note=lambda: next(numbers))


def test_notes_are_told_while_nothing_ends():
    async def main(wire):
        call = asyncio.ensure_future(wire.line.call("wait", "long", 60))
        while len(wire.notes) < 3:
            wire.desk.tell()
            await asyncio.sleep(0.001)
        assert not call.done()
        call.cancel()

    played(main, note=lambda: "now")
