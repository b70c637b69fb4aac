"""What comes out of a container is data of whoever may have taken it over: bounded, checked, never believed."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_core.errors import BackendError
from composer_envkit.agent import frames
from composer_plugin_docker.channel import Channel, Ended


@given(st.binary(max_size=300), st.integers(1, 40))
def test_bytes_of_any_kind_are_frames_or_malformed(data: bytes, step: int) -> None:
    decoder = frames.Decoder()
    try:
        for start in range(0, len(data), step):
            for header, body in decoder.feed(data[start : start + step]):
                assert isinstance(header, dict) and isinstance(body, bytes)
    except frames.Malformed:
        return


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.binary(), st.integers(1, 50))
def test_frames_arrive_whole_however_they_are_cut(header: dict[str, object], body: bytes, step: int) -> None:
    data, decoder = frames.encode(header, body) * 2, frames.Decoder()
    found = [frame for start in range(0, len(data), step) for frame in decoder.feed(data[start : start + step])]
    assert found == [(header, body)] * 2


@pytest.mark.parametrize("data", [b"\xff" * 8, struct.pack("!II", 2, 0) + b"[]", struct.pack("!II", 3, 0) + b"{]}"])
def test_what_is_no_frame_is_malformed_before_it_is_kept(data: bytes) -> None:
    with pytest.raises(frames.Malformed):
        list(frames.Decoder().feed(data))


class Pipe(asyncio.Transport):
    """A connection whose other end is the test."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.channel, self.sent = channel, b""
        channel.connection_made(self)

    def write(self, data: object) -> None:
        self.sent += bytes(data)  # type: ignore[call-overload]

    def abort(self) -> None:
        self.channel.connection_lost(None)

    def answer(self, data: bytes, stream: int = 1) -> None:
        self.channel.data_received(struct.pack("!BxxxI", stream, len(data)) + data)


def test_answers_to_no_request_are_dropped_and_an_agents_error_keeps_its_kind() -> None:
    async def main() -> None:
        channel = Channel()
        pipe = Pipe(channel)
        asked = asyncio.ensure_future(channel.ask("read"))
        await asyncio.sleep(0)
        for number in (7, -1, "1", None, 1.5):
            pipe.answer(frames.encode({"n": number, "forged": True}))
        pipe.answer(b"words", stream=2)
        assert not asked.done() and channel.last_words == b"words"
        pipe.answer(frames.encode({"n": 1, "error": "invented", "message": ["x"]}))
        with pytest.raises(BackendError):
            await asked

    asyncio.run(main())


def test_a_frame_that_is_none_ends_the_channel_and_every_request() -> None:
    async def main() -> None:
        channel = Channel()
        pipe = Pipe(channel)
        asked = asyncio.ensure_future(channel.ask("read"))
        await asyncio.sleep(0)
        pipe.answer(b"\xff" * 8)
        for request in (asked, channel.ask("read")):
            with pytest.raises(Ended):
                await request
        assert channel.malformed

    asyncio.run(main())


def test_what_cannot_be_sent_leaves_nobody_waiting() -> None:
    async def main() -> None:
        channel = Channel()
        Pipe(channel)
        with pytest.raises(TypeError):
            await channel.ask("write", "text")  # type: ignore[arg-type]
        assert not channel._pending

    asyncio.run(main())


@pytest.mark.parametrize(("op", "more"), [("exec", ["kill"]), ("session", ["kill"]), ("read", [])])
def test_a_command_whose_caller_gives_up_is_ended(op: str, more: list[str]) -> None:
    async def main() -> None:
        channel = Channel()
        pipe = Pipe(channel)
        asked = asyncio.ensure_future(channel.ask(op))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        sent = [header for header, _ in frames.Decoder().feed(pipe.sent)]
        assert [header["op"] for header in sent] == [op, *more] and not channel._pending
        assert sent[-1].get("number", 1) == sent[0]["n"] == 1

    asyncio.run(main())
