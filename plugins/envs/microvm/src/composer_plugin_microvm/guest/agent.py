"""Process 1 of a machine: serves the host's requests one by one, and never waits for a command or for the host.

The loop runs at real-time priority, outside the commands' control groups, and holds no more output than their caps, so
whatever a command does to the machine the agent answers. `hold` makes it silent between two frames, which is when a
machine can be captured; a clone wakes in that silence and stays there until it has been told who it is (`adopt`).

A frame that cannot be understood or a request that is none ends the machine: its host speaks this very version.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from composer_envkit.agent import deadlines, files
from composer_envkit.agent.relay import Relay
from composer_envkit.agent.sessions import NOBODY, WORDS, Sessions, Shell
from composer_envkit.agent.words import UNFIT, are_words, not_started
from composer_plugin_microvm.guest import system, wire
from composer_plugin_microvm.guest.commands import FLUSH_S, Command
from composer_plugin_microvm.guest.line import Line
from composer_plugin_microvm.guest.workspace import Reply, Workspace

HOLD_S = 1.0
"""How long the host may take to hear what was said before `hold`."""


class Agent:
    """One machine's agent."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.line = Line(self.selector, self._receive, self._begin)
        self.decoder = wire.Decoder()
        self.bodies: dict[int, bytearray] = {}
        self.commands: dict[int, Command] = {}
        self.workspace = Workspace()
        self.leaving: list[Command] = []
        self.sessions = self._new_sessions()
        self.relay: Relay | None = None
        """The commands' way out, once a network was allowed."""
        self.paused_s = 0.0
        """When the host began to stop the machine; 0 while it runs."""

    # --- the loop -------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        children, wakes = socket.socketpair()
        for end in (children, wakes):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self.selector.register(children, selectors.EVENT_READ, lambda: self._reap(children))
        self.line.open()
        while True:
            for key, events in self.selector.select(self._patience()):
                if events & selectors.EVENT_WRITE:
                    self.line.flush()
                if events & selectors.EVENT_READ and key.fd in self.selector.get_map():
                    key.data()
            self._tick()

    def _patience(self) -> float | None:
        if self.leaving:
            return 0.01
        flush_s = FLUSH_S if any(command.holds for command in self.commands.values()) else None
        late_s = deadlines.patience_s(self._timed())
        return min((wait_s for wait_s in (flush_s, late_s) if wait_s is not None), default=None)

    def _timed(self) -> list[Command]:
        """Whose time runs."""
        return [] if self.paused_s else list(self.commands.values())

    def _tick(self) -> None:
        deadlines.end_late(self._timed())
        for command in self.commands.values():
            command.flush(time.monotonic())
        self.leaving = [command for command in self.leaving if not command.group.remove()]

    def _begin(self) -> None:
        """A new connection: halves of what came on another are of no use."""
        self.decoder = wire.Decoder()
        self.bodies.clear()

    def _receive(self, data: bytes) -> None:
        for header, body in self.decoder.feed(data):
            number = header["n"]
            whole = self.bodies.setdefault(number, bytearray())
            whole += body
            if not header.get("more"):
                self._handle(header, bytes(self.bodies.pop(number)))

    def _handle(self, header: dict[str, Any], body: bytes) -> None:
        try:
            name = f"do_{header['op']}"
            reply: Reply | None = getattr(self if hasattr(self, name) else self.workspace, name)(header, body)
        except files.Refused as error:
            reply = {"error": error.kind, "message": str(error)}, b""
        except Exception as error:  # one request may fail; process 1 may not
            reply = {"error": "backend", "message": f"{header['op']}: {type(error).__name__}: {error}"}, b""
        if reply is not None:
            self._send({"n": header["n"], **reply[0]}, reply[1])

    def _send(self, header: dict[str, Any], data: bytes) -> None:
        self.line.send(wire.encode(header, data))

    def _reap(self, children: socket.socket) -> None:
        """Everything that has died: commands are told of, orphans are forgotten."""
        with suppress(BlockingIOError):
            children.recv(4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for command in [command for command in self.commands.values() if command.pid == pid]:
                self._over(command, status)

    def _unwatch(self, fd: int) -> None:
        if fd in self.selector.get_map():
            self.selector.unregister(fd)

    def _over(self, command: Command, status: int) -> None:
        if command.shell:
            self._unwatch(command.shell.fd)
        command.ended(status)
        for stream in command.streams:
            self._unwatch(stream.fd)
        command.close()
        del self.commands[command.number]
        if not command.group.remove():
            self.leaving.append(command)

    # --- requests -------------------------------------------------------------------------------------------------

    def do_ping(self, header: dict[str, Any], body: bytes) -> Reply:
        return {"pid": os.getpid(), "time_s": time.time()}, b""

    def do_hold(self, header: dict[str, Any], body: bytes) -> None:
        """Answers, and says no more until `go` or `adopt`; what is to be sent meanwhile is kept."""
        self._send({"n": header["n"]}, b"")
        self.line.flush(HOLD_S)
        self.line.silent = True

    def do_go(self, header: dict[str, Any], body: bytes) -> Reply:
        self.line.silent = False
        return {}, b""

    def do_adopt(self, header: dict[str, Any], body: bytes) -> Reply:
        """A clone becomes itself; what its parent ran ends, or goes on unheard where processes were captured too."""
        system.adopt(header["generation"], header["time_s"], body)
        self._leave_network()
        if header["running"]:
            self.sessions.disown()
        else:
            self._leave_sessions()
        for command in list(self.commands.values()):
            command.send = _silent
            if not header["running"]:
                command.kill()
        self.line.drop()
        self.line.silent = False
        return {"generation": header["generation"], "time_s": time.time()}, b""

    def _leave_sessions(self) -> None:
        """They are the parent's, and so is who is told of their end."""
        self.sessions.close()
        self.sessions.reply = lambda number, header, data: None
        self.sessions = self._new_sessions()

    def _leave_network(self) -> None:
        """What may be reached is decided for one machine, and its host carries the connections."""
        if self.relay is not None:
            self._unwatch(self.relay.fileno())
            self.relay.reply = lambda number, header, data: None
            self.relay.close()
            self.relay = None

    def do_relay(self, header: dict[str, Any], body: bytes) -> Reply | None:
        if header["act"] != "listen":
            assert self.relay is not None
            self.relay.ask(header, body)
            return None
        relay = Relay(self._answer)
        relay.listen()
        self.relay = relay
        self.selector.register(relay, selectors.EVENT_READ, relay.step)
        return {}, b""

    def do_pause(self, header: dict[str, Any], body: bytes) -> Reply:
        self.paused_s = self.paused_s or time.monotonic()
        return {}, b""

    def do_resume(self, header: dict[str, Any], body: bytes) -> Reply:
        """The time in between does not count for commands, and the clock goes right again."""
        for command in self.commands.values():
            command.stood_still(time.monotonic() - (self.paused_s or time.monotonic()))
        self.paused_s = 0.0
        time.clock_settime(time.CLOCK_REALTIME, header["time_s"])
        return {}, b""

    def do_exec(self, header: dict[str, Any], body: bytes) -> Reply | None:
        """Words and environment stand before the input, with their length: they may be longer than a header."""
        argv, env = json.loads(body[: header["words"]])
        try:
            self._start(header, argv, env, body[header["words"] :])
        except (OSError, ValueError) as error:
            return not_started(argv, error)
        return None

    def _start(self, request: dict[str, Any], argv: list[str], env: dict[str, str], stdin: bytes | int) -> Command:
        """Raises Refused; OSError where there is no room for a process, ValueError where a word is no text."""
        limits = self.workspace.limits
        cwd = files.open_folder(self.workspace.root, request["cwd"])
        command = Command(request, limits, self._send)
        try:
            command.start(argv, {**limits["env"], **env}, stdin, cwd, limits["file_bytes"])
        except (OSError, ValueError):
            command.close()
            command.group.remove()
            raise
        finally:
            os.close(cwd)
        self.commands[command.number] = command
        for stream in command.streams:
            self.selector.register(stream.fd, selectors.EVENT_READ, self._drainer(stream.fd, stream.drain))
        return command

    def do_session(self, header: dict[str, Any], body: bytes) -> Reply | None:
        """Words and environment are the body."""
        argv, env = json.loads(body)
        if not are_words(argv):
            return not_started(argv, UNFIT)
        self.sessions.ask({**header, "argv": argv, "env": env})
        return None

    def _new_sessions(self) -> Sessions:
        return Sessions(self._shell, self._answer)

    def _answer(self, number: int, header: dict[str, Any], data: bytes) -> None:
        if number != NOBODY:
            self._send({"n": number, **header}, data)

    def _shell(self, shell: Shell, first: dict[str, Any]) -> Command:
        command = self._start({**first, "cwd": "", "output_bytes": 0}, list(WORDS), first["env"], shell.theirs)
        command.shell = shell
        self.selector.register(shell.fd, selectors.EVENT_READ, self._drainer(shell.fd, shell.heard))
        return command

    def _drainer(self, fd: int, goes_on: Callable[[], bool]) -> Callable[[], None]:
        def drain() -> None:
            if not goes_on():
                self.selector.unregister(fd)

        return drain

    def do_kill(self, header: dict[str, Any], body: bytes) -> Reply:
        """Nobody waits for the command of that request any more."""
        self.sessions.give_up(header["number"])
        command = self.commands.get(header["number"])
        if command and not command.shell:
            command.kill()
        return {}, b""


def _silent(header: dict[str, Any], data: bytes) -> None:
    """Where a clone's inherited commands say how they ended."""


def main() -> None:
    system.begin()
    Agent().serve()
