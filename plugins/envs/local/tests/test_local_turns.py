"""A keeper that has run out of descriptors refuses a command, and keeps everybody's sandboxes."""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from composer_envkit.agent import frames
from composer_plugin_local.client import Keeper
from composer_plugin_local.keeper import commands, turns
from composer_plugin_local.keeper.commands import Command
from composer_plugin_local.keeper.pauses import Pauses
from composer_plugin_local.keeper.turns import Turns

REQUEST = {"timeout_s": 1.0, "output_bytes": 10}
FULL = OSError(errno.EMFILE, "no descriptor left")


class Slot:
    closed, groups = False, None

    def __init__(self) -> None:
        self.channel, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def ran_out_of_memory(self) -> bool:
        return False

    def start(self, *_: Any) -> None:
        self.theirs.send(b"P")  # whose descriptor the receiver had no room for

    def close(self) -> None:
        self.closed = True
        self.channel.close()
        self.theirs.close()


@pytest.fixture
def keeper(monkeypatch):
    """Turns of one slot, the replies, and the slots that were made."""
    replies: dict[int, dict[str, Any]] = {}
    slots: list[Slot] = []

    def slot(self: Turns) -> Slot:
        slots.append(Slot())
        return slots[-1]

    monkeypatch.setattr(Turns, "_slot", slot)
    with selectors.DefaultSelector() as selector:
        settings = {"commands": 1, "bwrap": ""}

        def reply(number: int, header: dict[str, Any], data: bytes = b"") -> None:
            replies[number] = header

        yield Turns(selector, None, None, settings, reply, lambda sandbox: None), replies, slots
    for one in slots:
        one.close()


def sandbox() -> Any:
    spec = {"file_bytes": 1, "memory_bytes": 1, "processes": 1, "tools": [], "env": {}}
    room = SimpleNamespace(root=-1, network=-1)
    return SimpleNamespace(
        spec=spec,
        commands=set(),
        stands=False,
        stopping=None,
        paused_s=0.0,
        destroyed_by=None,
        room_of=lambda rooms: room,
    )


def fail(*_: Any) -> Any:
    raise FULL


def test_commands_without_descriptors_are_refused_one_by_one_and_their_slot_serves_again(keeper, monkeypatch):
    turned, replies, slots = keeper
    monkeypatch.setattr(turns, "Command", fail)
    for number in range(3):
        turned.wait(sandbox(), {"n": number, **REQUEST}, b"")
    assert [replies[number]["error"] for number in range(3)] == ["backend"] * 3
    assert len(slots) == 1 and not slots[0].closed
    with pytest.raises(OSError, match="no descriptor left"):
        turned.shell(sandbox(), SimpleNamespace(ended=fail), {"n": 4, **REQUEST})
    assert slots[1].closed


def test_a_command_that_cannot_have_all_its_streams_leaves_none_of_them(monkeypatch):
    made, whole = [], commands.Stream

    def stream(cap: int) -> Any:
        made.append(whole(cap) if len(made) < 2 else fail())
        return made[-1]

    monkeypatch.setattr(commands, "Stream", stream)
    before, home = len(os.listdir("/proc/self/fd")), sandbox()
    with pytest.raises(OSError, match="no descriptor left"):
        Command(home, None, {"n": 1, **REQUEST}, fail)
    assert len(made) == 2 and len(os.listdir("/proc/self/fd")) == before and not home.commands


def test_a_command_whose_handle_could_not_be_received_is_lost_with_its_slot(keeper):
    turned, replies, slots = keeper
    request = {"n": 1, "env": {}, "cwd": "", "argv": ["true"], **REQUEST}
    turned.wait(sandbox(), request, b"")
    turned.selector.get_key(slots[0].channel).data()
    assert replies[1]["status"] == "lost" and slots[0].closed and not turned.running


# --- pauses -------------------------------------------------------------------------------------------------------


class Slow:
    """A sandbox that does not stand still at the first look."""

    def __init__(self, looks: int, error: OSError | None = None) -> None:
        self.looks, self.error = looks, error

    def pause(self) -> bool:
        self.looks -= 1
        if not self.looks and self.error:
            raise self.error
        return self.looks <= 0


def test_who_pauses_a_sandbox_that_is_slow_to_stop_waits_and_nobody_else() -> None:
    replies: list[tuple[int, dict[str, Any]]] = []
    failed: list[Any] = []
    pauses = Pauses(lambda number, answer: replies.append((number, answer)), failed.append)
    good, bad = Slow(3), Slow(2, OSError("1 processes do not stop"))
    assert pauses.patience_s(None) is None
    for number, one in ((1, good), (2, bad)):
        pauses.ask(one, number)
    assert replies == [] and pauses.patience_s(None) == pauses.patience_s(60.0) < 0.01, (
        "it is the next look that counts"
    )
    pauses.look()
    assert replies == [(2, {"error": "backend", "message": "1 processes do not stop"})] and failed == [bad]
    pauses.look()
    assert replies[1:] == [(1, {})] and pauses.patience_s(60.0) == 60.0


@pytest.mark.parametrize(("op", "undone_by"), [("pause", "resume"), ("exec", "kill"), ("read", None)])
def test_what_a_caller_gives_up_does_not_go_on_in_the_keeper(op: str, undone_by: str | None) -> None:
    async def main() -> None:
        keeper, sent = Keeper(), frames.Decoder()
        said: list[dict[str, Any]] = []
        keeper._transport = SimpleNamespace(write=lambda data: said.extend(header for header, _ in sent.feed(data)))
        asking = asyncio.ensure_future(keeper.ask(op, id="one"))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert [one["op"] for one in said] == list(filter(None, [op, undone_by]))
        assert {one["id"] for one in said} == {"one"}
        keeper.data_received(frames.encode({"n": said[-1]["n"]}))

    asyncio.run(main())


def test_a_slot_whose_command_had_just_ended_when_it_was_stopped_serves_others(keeper) -> None:
    turned, _, slots = keeper
    spared: list[int] = []
    home = sandbox()
    turned.wait(home, {"n": 1, "env": {}, "cwd": "", "argv": ["true"], **REQUEST}, b"")
    home.stopping = SimpleNamespace(spare=spared.append)
    slots[0].pid = 77
    (command,) = turned.running
    turned._over(command, dead=False)
    assert spared == [77]
