"""A keeper that has run out of descriptors refuses a command, and keeps everybody's sandboxes."""

from __future__ import annotations

import errno
import os
import selectors
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from composer_plugin_local.keeper import commands, turns
from composer_plugin_local.keeper.commands import Command
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
    return SimpleNamespace(spec=spec, commands=set(), paused_s=0.0, destroyed_by=None, room_of=lambda rooms: room)


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
