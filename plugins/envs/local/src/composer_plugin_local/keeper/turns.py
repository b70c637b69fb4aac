"""Whose turn it is: commands wait for a slot in the order in which they came, run in it, and are ended when late.

A session's shell has a slot of its own: it may live long, and others must not wait for it. Commands of a paused sandbox
keep their place and let others pass.
"""

from __future__ import annotations

import itertools
import selectors
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from composer_envkit.agent import deadlines
from composer_envkit.agent.sessions import WORDS, Shell
from composer_plugin_local.keeper.cgroups import Groups
from composer_plugin_local.keeper.commands import Command
from composer_plugin_local.keeper.rooms import Rooms
from composer_plugin_local.keeper.sandboxes import Sandbox
from composer_plugin_local.keeper.slots import Slot, receive

Reply = Callable[..., None]


class Turns:
    """All commands of a keeper."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        rooms: Rooms,
        groups: Groups | None,
        settings: dict[str, Any],
        reply: Reply,
        ended: Callable[[Sandbox], None],
    ) -> None:
        """`reply(number, header, data)` answers a request, `ended` is told of a sandbox whose command has."""
        self.selector, self.rooms, self.groups, self.settings = selector, rooms, groups, settings
        self.reply, self.ended = reply, ended
        self.running: set[Command] = set()
        self._waiting: deque[tuple[Sandbox, dict[str, Any], bytes]] = deque()
        self._idle: list[Slot] = []
        self._slots = 0
        self._numbers = itertools.count()

    # --- time -------------------------------------------------------------------------------------------------

    def _timed(self) -> list[Command]:
        """Whose time runs."""
        return [command for command in self.running if not command.sandbox.paused_s]

    def patience_s(self) -> float | None:
        """Until a command is late."""
        return deadlines.patience_s(self._timed())

    def end_late(self) -> None:
        deadlines.end_late(self._timed())

    # --- turns ------------------------------------------------------------------------------------------------

    def wait(self, sandbox: Sandbox, request: dict[str, Any], stdin: bytes) -> None:
        self._waiting.append((sandbox, request, stdin))
        self.go_on()

    def give_up(self, sandbox: Sandbox, number: int | None = None) -> list[int]:
        """End what runs in it, all or one request's command; numbers of what waited, which is forgotten."""
        for command in [one for one in sandbox.commands if number is None or (one.number == number and not one.shell)]:
            command.kill()
        gone = [entry for entry in self._waiting if entry[0] is sandbox and number in (None, entry[1]["n"])]
        for entry in gone:
            self._waiting.remove(entry)
        return [request["n"] for _, request, _ in gone]

    def go_on(self) -> None:
        while self._idle or self._slots < self.settings["commands"]:
            entry = next((entry for entry in self._waiting if not entry[0].stands), None)
            if entry is None:
                return
            self._waiting.remove(entry)
            sandbox, request, stdin = entry
            try:
                slot = self._idle.pop() if self._idle else self._new_slot()
            except OSError as error:
                self.reply(request["n"], {"error": "backend", "message": f"no slot: {error}"})
                continue
            self._start(sandbox, slot, request, stdin)

    def _new_slot(self) -> Slot:
        slot = self._slot()
        self._slots += 1
        return slot

    def _slot(self) -> Slot:
        return Slot(next(self._numbers), self.groups, self.settings["bwrap"])

    def _start(self, sandbox: Sandbox, slot: Slot, request: dict[str, Any], stdin: bytes) -> None:
        number = request["n"]
        try:
            room = sandbox.room_of(self.rooms)
            command = Command(sandbox, slot, request, lambda reply, data=b"": self.reply(number, reply, data))
        except OSError as error:
            self._idle.append(slot)
            self.reply(number, {"error": "backend", "message": f"no room for a command: {error}"})
            return
        self._watch(command)
        try:
            command.start(room, request, stdin)
        except OSError as error:
            self._unwatch(command)
            command.refused(error.errno or 0)
            self._over(command, dead=True)

    def shell(self, sandbox: Sandbox, shell: Shell, first: dict[str, Any]) -> Command:
        """Raises OSError."""
        room, slot = sandbox.room_of(self.rooms), self._slot()
        request = {**first, "argv": WORDS, "output_bytes": 0}
        try:
            command = Command(sandbox, slot, request, lambda reply, data=b"": shell.ended(reply, data), shell)
        except OSError:
            slot.close()
            raise
        self._watch(command)
        try:
            command.start(room, request, shell.theirs)
        except OSError:
            self._unwatch(command)
            command.close()
            self._over(command, dead=True)
            raise
        return command

    def _over(self, command: Command, dead: bool) -> None:
        self.running.discard(command)
        if command.shell:
            command.slot.close()
        elif dead:
            command.slot.close()
            self._slots -= 1
        else:
            if command.sandbox.stopping is not None:  # the slot was stopped when its command had just ended
                command.sandbox.stopping.spare(command.slot.pid)
            self._idle.append(command.slot)
        self.ended(command.sandbox)
        self.go_on()

    # --- what commands say ------------------------------------------------------------------------------------

    def _watch(self, command: Command) -> None:
        self.running.add(command)
        self.selector.register(command.slot.channel, selectors.EVENT_READ, lambda: self._from_slot(command))
        for stream in command.streams:
            self._drain(stream.fd, stream.drain)
        if command.shell:
            self._drain(command.shell.fd, command.shell.heard)

    def _drain(self, fd: int, goes_on: Callable[[], bool]) -> None:
        def drain() -> None:
            if not goes_on():
                self.selector.unregister(fd)

        self.selector.register(fd, selectors.EVENT_READ, drain)

    def _unwatch(self, command: Command) -> None:
        shell = [command.shell.fd] if command.shell else []
        for source in (command.slot.channel.fileno(), *shell, *(stream.fd for stream in command.streams)):
            if source in self.selector.get_map():
                self.selector.unregister(source)

    def _from_slot(self, command: Command) -> None:
        message, fds = receive(command.slot.channel)
        if message[:1] == b"P" and fds:  # without, what has started cannot be ended but with its slot
            command.pidfd = fds[0]
            if command.killed:
                command.kill()
            return
        self._unwatch(command)
        if message[:1] == b"X":
            command.ended(struct.unpack("!i", message[1:])[0])
        elif message[:1] == b"E":
            command.refused(struct.unpack("!i", message[1:])[0])
        else:
            command.lost()
        self._over(command, dead=message[:1] not in (b"X", b"E"))
