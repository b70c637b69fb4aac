"""The host's parsers take whatever a guest may send: bounded, and with one kind of error. No machine needed."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from composer_envkit.agent.frames import Malformed
from composer_plugin_microvm.answers import NONSENSE, entries, patch, result
from composer_plugin_microvm.channel import Broken, Channel, Reply
from composer_plugin_microvm.guest import wire
from composer_plugin_microvm.qmp import MAX_LINE, Qmp

JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = some.sampled_from(
    ["n", "k", "more", "status", "split", "exit_code", "signal", "stdout_bytes", "table", "error"]
)
HEADERS = some.dictionaries(NAMES, JSON | some.sampled_from(["out", "err", "exited", "signaled"]), max_size=8)
LENGTHS_BYTES = 8


def frame(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("!II", len(text), len(body)) + text + body


def fed(chunks: list[bytes]) -> list[wire.Frame]:
    decoder, frames = wire.Decoder(), []
    for chunk in chunks:
        frames += decoder.feed(chunk)
        assert len(decoder._frames._buffer) < LENGTHS_BYTES + wire.MAX_HEADER + wire.MAX_BODY + len(chunk)
    return frames


@given(some.lists(some.tuples(some.integers(), some.binary(max_size=50)), max_size=5), some.data())
def test_frames_come_out_as_they_went_in_however_they_are_cut(sent: list[tuple[int, bytes]], data: Any) -> None:
    whole = b"".join(wire.encode({"n": number}, body) for number, body in sent)
    cuts = sorted(data.draw(some.lists(some.integers(0, len(whole)), max_size=8)))
    chunks = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert [(header["n"], body) for header, body in fed(chunks)] == sent


def test_a_long_body_travels_in_frames_of_a_bounded_size() -> None:
    body = bytes(range(256)) * 4000
    frames = fed([wire.encode({"n": 1, "op": "write"}, body)])
    assert b"".join(part for _, part in frames) == body and max(len(part) for _, part in frames) <= wire.MAX_BODY
    assert [header.get("more", False) for header, _ in frames] == [True] * (len(frames) - 1) + [False]
    assert frames[-1][0]["op"] == "write"


@settings(max_examples=300)
@given(some.lists(some.binary(max_size=200), max_size=6))
def test_bytes_that_are_no_frames_are_refused_and_not_kept(chunks: list[bytes]) -> None:
    try:
        fed(chunks)
    except Malformed:
        return


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b"9" * 5000,
        b"{}",
        b"[]",
        b'{"n":1.5}',
        b'{"n":true}',
        b'{"n":"1"}',
        b"\xff",
        b'{"n":' + b"9" * 9999,
    ],
)
def test_headers_that_are_no_table_with_a_number_are_bad_frames(text: bytes) -> None:
    with pytest.raises(Malformed):
        fed([frame(text)])


@pytest.mark.parametrize("lengths", [(0xFFFFFFFF, 0), (0, 0xFFFFFFFF), (2, wire.MAX_BODY + 1)])
def test_a_frame_that_would_be_too_large_is_refused_before_it_is_read(lengths: tuple[int, int]) -> None:
    with pytest.raises(Malformed):
        fed([struct.pack("!II", *lengths)])


@settings(max_examples=300)
@given(some.lists(some.tuples(HEADERS, some.binary(max_size=300)), max_size=8), some.booleans())
def test_a_channel_hears_a_reply_or_breaks_and_keeps_no_more_than_was_asked_for(sent: Any, numbered: bool) -> None:
    async def whole() -> None:
        channel = Channel()
        reply = channel._pending[1] = Reply(asyncio.get_running_loop().create_future(), 500)
        for header, body in sent:
            if channel.broken:
                break
            channel.data_received(frame({**header, "n": 1} if numbered else header, body))
            assert all(len(kept) <= 500 for kept in reply.bodies.values())
        if channel.broken and not reply.future.cancelled() and reply.future.done() and reply.future.exception():
            assert isinstance(reply.future.exception(), Broken)
        channel.end("the test is over")

    asyncio.run(whole())


@settings(max_examples=300)
@given(HEADERS, some.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode()))
def test_replies_of_any_shape_are_a_value_or_one_of_few_errors(header: dict[str, Any], body: bytes) -> None:
    async def whole() -> None:
        reply = Reply(asyncio.get_running_loop().create_future(), 1 << 16)
        reply.take("data", body)
        for take in (lambda: result(header, reply, 500, 1.0), lambda: entries(body), lambda: patch(header, body)):
            try:
                take()
            except NONSENSE:
                continue

    asyncio.run(whole())


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b"])
def test_a_patch_with_paths_that_lead_out_is_nonsense(path: str) -> None:
    table = json.dumps([[[path, 1, False]], [], []]).encode()
    with pytest.raises(NONSENSE):
        patch({"table": len(table)}, table + b"x")


@settings(max_examples=100)
@given(some.lists(some.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode() + b"\n"), max_size=6))
def test_what_qemu_says_is_bounded_and_never_raises(chunks: list[bytes]) -> None:
    async def whole() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(b"".join(chunks))
        qmp = Qmp(ours)
        qmp.drain()
        assert ours.fileno() < 0 and len(qmp._buffer) <= MAX_LINE
        await asyncio.wait([qmp.ready])

    asyncio.run(whole())


def test_a_qemu_that_hangs_or_never_stops_talking_keeps_nobody_who_asks_why_it_ended() -> None:
    async def whole() -> None:
        ours, theirs = socket.socketpair()
        qmp = Qmp(ours)
        with theirs:
            theirs.sendall(b'{"event": "SHUTDOWN", "data": {"reason": "guest-panic"}}\n')
            qmp.drain()
            assert qmp.end_reason == "guest-panic" and ours.fileno() >= 0
            recv, said = qmp._socket, iter(range(10_000))
            qmp._socket = cast(Any, SimpleNamespace(recv=lambda size: b"{}\n" if next(said) >= 0 else b""))
            qmp.drain()
            assert next(said) < 1000
            qmp._socket = recv
            qmp.close()

    asyncio.run(whole())
