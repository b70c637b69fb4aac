"""The agent's loop: first process of a container, one thread, never waits for a command or a reader of one.

Requests come as frames on standard input, answers leave on standard output in any order, each with its request's
number. When the input ends, so does the agent, and the kernel ends everything in the container with it: a controller
that is killed leaves no command running.

Its own identity is the container's root with four capabilities, of which a command keeps none (`commands.give_up`), so
commands cannot signal, trace or limit it. Files it opens as the commands' user, see `linux.files_as`.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from typing import Any

from composer_envkit.agent import deadlines, files, frames, linux
from composer_envkit.agent.relay import Relay
from composer_envkit.agent.sessions import WORDS, Sessions, Shell
from composer_envkit.agent.streams import Stream
from composer_envkit.agent.words import UNFIT, are_words, not_started
from composer_plugin_docker.agent.commands import NOBODY, Command
from composer_plugin_docker.agent.workspace import Workspace, captured, lay_rows

WORKSPACE, TMP, TEMPLATE = "/workspace", "/tmp", "/.composer/template"
READ_BYTES = 1 << 20
OOM_FILES = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
Reply = tuple[dict[str, Any], bytes]


class Agent:
    """Serves one container until its standard input ends."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.running: dict[int, Command] = {}
        self.settings: dict[str, Any] = {}
        self.env: dict[str, str] = {}
        self.kills = out_of_memory()
        self.paused_s = 0.0
        """When the host began to pause the container, which then stops the agent too; 0 while it is not."""
        self.sessions = Sessions(self._shell, self._reply)
        self.relay: Relay | None = None

    def serve(self) -> None:
        decoder = frames.Decoder()
        self.selector.register(0, selectors.EVENT_READ, None)
        while True:
            for key, _ in self.selector.select(deadlines.patience_s(self._timed())):
                if key.fd == 0:
                    data = os.read(0, READ_BYTES)
                    if not data:
                        return
                    for header, body in decoder.feed(data):
                        self._handle(header, body)
                elif key.data is self.relay:
                    self.relay.step()
                elif key.fd in self.selector.get_map():  # an earlier event may have closed it
                    self._progress(*key.data)
            deadlines.end_late(self._timed())

    def _timed(self) -> list[Command]:
        """Whose time runs."""
        return [] if self.paused_s else list(self.running.values())

    def _handle(self, header: dict[str, Any], body: bytes) -> None:
        number = header["n"]
        try:
            reply = getattr(self, f"do_{header['op']}")(header, body)
        except files.Refused as error:
            reply = {"error": error.kind, "message": str(error)}, b""
        except OSError as error:
            refused = files.refusal(error, "")
            kind = "quota" if refused.kind == "quota" else "backend"
            reply = {"error": kind, "message": f"{header['op']}: {error.strerror}"}, b""
        except Exception as error:  # one request may fail, the others may not fall with it
            reply = {"error": "backend", "message": f"{header['op']}: {type(error).__name__}: {error}"}, b""
        if reply is not None:
            self._reply(number, *reply)

    def _reply(self, number: int, header: dict[str, Any], data: bytes = b"") -> None:
        files.write_all(1, frames.encode({**header, "n": number}, data))

    # --- requests ---------------------------------------------------------------------------------------------

    def do_lay(self, header: dict[str, Any], body: bytes) -> Reply:
        """Lay out the template, changed by a capture if there is one; the first request of all."""
        self.settings, self.env = header["settings"], header["settings"]["env"]
        self.workspace = Workspace(WORKSPACE, TEMPLATE)
        self.tmp = os.open(TMP, os.O_PATH | os.O_DIRECTORY)
        if "rows" in header:
            data, changed = memoryview(body), frozenset(header["changed"])
            used = lay_rows(self.workspace.fd, header["rows"], data, lambda: self.workspace.lay(changed))
            lay_rows(self.tmp, header["tmp"], data[used:])
        else:
            self.workspace.lay()
        return {"counts_oom": self.kills is not None}, b""

    def do_find(self, header: dict[str, Any], body: bytes) -> Reply:
        """Which of the named commands are not on the search path."""
        folders = header["path"].split(":")
        found = [name for name in header["names"] if any(os.access(f"{at}/{name}", os.X_OK) for at in folders)]
        return {"missing": [name for name in header["names"] if name not in found]}, b""

    def do_read(self, header: dict[str, Any], body: bytes) -> Reply:
        return {}, files.read(self.workspace.fd, header["path"], header["limit"])[0]

    def do_write(self, header: dict[str, Any], body: bytes) -> Reply:
        files.write(self.workspace.fd, header["path"], body, self.settings["file_bytes"])
        return {}, b""

    def do_list(self, header: dict[str, Any], body: bytes) -> Reply:
        return {"entries": files.listing(self.workspace.fd, header["path"])}, b""

    def do_changes(self, header: dict[str, Any], body: bytes) -> Reply:
        rows, data, deletes, skipped = self.workspace.changes(header["limit"])
        return {"writes": rows, "deletes": deletes, "skipped": skipped}, data

    def do_capture(self, header: dict[str, Any], body: bytes) -> Reply:
        rows, changed, parts = self.workspace.capture()
        tmp, more = captured(self.tmp)
        return {"rows": rows, "changed": changed, "tmp": tmp}, b"".join([*parts, *more])

    # --- commands ---------------------------------------------------------------------------------------------

    def do_exec(self, header: dict[str, Any], body: bytes) -> Reply | None:
        argv = header["argv"]
        if not are_words(argv):
            return not_started(argv, UNFIT)
        try:
            self._command(header, body)
        except OSError as error:
            return not_started(argv, error.strerror or "cannot be started")
        return None

    def _command(self, request: dict[str, Any], stdin: bytes | int) -> Command:
        """Raises OSError, Refused."""
        cwd = files.open_folder(self.workspace.fd, request["cwd"])
        try:
            request["file_bytes"] = self.settings["file_bytes"]
            command = Command(request, stdin, cwd, self.env, self._oom)
        finally:
            os.close(cwd)
        self.running[command.number] = command
        for stream in command.streams:
            self.selector.register(stream.fd, selectors.EVENT_READ, (command, stream))
        return command

    def _oom(self) -> bool:
        """Whether the kernel has killed here for memory since this was asked last."""
        before, self.kills = self.kills, out_of_memory()
        return self.kills != before

    def do_pause(self, header: dict[str, Any], body: bytes) -> Reply:
        self.paused_s = self.paused_s or time.monotonic()
        return {}, b""

    def do_resume(self, header: dict[str, Any], body: bytes) -> Reply:
        """The time in between does not count for commands."""
        for command in self.running.values():
            command.stood_still(time.monotonic() - (self.paused_s or time.monotonic()))
        self.paused_s = 0.0
        return {}, b""

    def do_kill(self, header: dict[str, Any], body: bytes) -> Reply:
        """Nobody waits for the command of that request any more."""
        self.sessions.give_up(header["number"])
        command = self.running.get(header["number"])
        if command is not None and command.shell is None:
            command.deadline = 0.0  # so that one is ended too that has not quite begun
        return {}, b""

    def do_relay(self, header: dict[str, Any], body: bytes) -> Reply | None:
        if header["act"] != "listen":
            assert self.relay is not None
            self.relay.ask(header, body)
            return None
        relay = Relay(self._reply)
        relay.listen()
        self.relay = relay
        self.selector.register(relay, selectors.EVENT_READ, relay)
        return {}, b""

    def do_session(self, header: dict[str, Any], body: bytes) -> Reply | None:
        if not are_words(header["argv"]):
            return not_started(header["argv"], UNFIT)
        self.sessions.ask(header)
        return None

    def _shell(self, shell: Shell, first: dict[str, Any]) -> Command:
        command = self._command({**first, "argv": WORDS, "output_bytes": 0}, shell.theirs)
        command.shell = shell
        self.selector.register(shell.fd, selectors.EVENT_READ, (command, shell))
        return command

    def _progress(self, command: Command, source: Stream | Shell) -> None:
        if source is command.status:
            if not command.reported():
                self._over(command)
        elif not (source.heard() if isinstance(source, Shell) else source.drain()):
            self.selector.unregister(source.fd)

    def _over(self, command: Command) -> None:
        shell = command.shell
        for fd in (*(stream.fd for stream in command.streams), *([shell.fd] if shell else [])):
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
        del self.running[command.number]
        result = command.result()
        if shell:
            shell.ended(*result)
        else:
            self._reply(command.number, *result)
        self._reap()

    def _reap(self) -> None:
        """Whatever became ours and has ended; a shepherd that still serves a command is not touched."""
        shepherds = {command.shepherd for command in self.running.values()}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in shepherds:
                return
            os.waitpid(found.si_pid, 0)


def out_of_memory() -> int | None:
    """Processes that the kernel has killed here for want of memory; None where this cannot be read."""
    for name in OOM_FILES:
        try:
            with open(name) as file:
                lines = [line.split() for line in file]
        except OSError:
            continue
        return next((int(words[1]) for words in lines if words[0] == "oom_kill"), None)
    return None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # from inside, the kernel then ignores it
    os.umask(0o022)
    linux.files_as(NOBODY, NOBODY)
    try:
        Agent().serve()
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)
