"""The keeper's loop: one thread that never waits for a command, a slot or a reader.

File operations and mounts take microseconds to milliseconds and run inline; commands run in slots, and the selector
tells when they print, end or are due. A reply carries its request's number, so replies come in any order.
"""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
from collections import deque
from typing import Any

from composer_envkit.agent import files, frames
from composer_envkit.agent.relay import Relay
from composer_envkit.agent.sessions import Sessions
from composer_envkit.agent.words import UNFIT, are_words, not_started
from composer_plugin_local.keeper import wire
from composer_plugin_local.keeper.cgroups import Groups
from composer_plugin_local.keeper.changes import changes
from composer_plugin_local.keeper.layers import LEVELS, State, Store, Template, used_bytes
from composer_plugin_local.keeper.pauses import Pauses
from composer_plugin_local.keeper.rooms import Rooms
from composer_plugin_local.keeper.sandboxes import Sandbox
from composer_plugin_local.keeper.turns import Turns

WHILE_PAUSED = ("pause", "resume", "destroy", "attach")
"""All else that is asked of a paused sandbox waits."""


class Failure(Exception):
    """A request cannot be served; `kind` is gone, missing, capacity or backend."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Server:
    """Serves one provider until its socket ends."""

    def __init__(
        self, channel: socket.socket, state: str, tools: str, groups: Groups | None, settings: dict[str, Any]
    ) -> None:
        self.channel, self.state, self.groups, self.settings = channel, state, groups, settings
        self.selector = selectors.DefaultSelector()
        self.outgoing: deque[memoryview] = deque()
        self.templates: dict[str, Template] = {}
        self.snapshots: dict[str, State] = {}
        self.sandboxes: dict[str, Sandbox] = {}
        self.open = True
        self.rooms = Rooms(f"{state}/room", tools, settings["hidden"])
        self.turns = Turns(self.selector, self.rooms, groups, settings, self._reply, self._went_on)
        self.pauses = Pauses(self._reply, self._resume)
        self.store = Store(state, settings["store_bytes"])
        for name in ("templates", "room", *(f"live/{level}" for level in range(LEVELS + 1))):
            os.makedirs(f"{state}/{name}")

    # --- the loop ---------------------------------------------------------------------------------------------

    def serve(self) -> None:
        decoder = frames.Decoder(wire.MAX_HEADER)
        self.channel.setblocking(False)
        self.selector.register(self.channel, selectors.EVENT_READ, lambda: self._receive(decoder))
        self._reply(0, {"limits": "cgroups" if self.groups else "rlimits"})
        while self.open:
            for key, events in self.selector.select(self.pauses.patience_s(self.turns.patience_s())):
                if events & selectors.EVENT_WRITE:
                    self._flush()
                now_there = self.selector.get_map().get(key.fd)  # an earlier event may have closed or reused the number
                if events & selectors.EVENT_READ and now_there is not None and now_there.data is key.data:
                    key.data()
            self.turns.end_late()
            self.pauses.look()

    def _receive(self, decoder: frames.Decoder) -> None:
        try:
            data = self.channel.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.open = False
        for header, body in decoder.feed(data):
            self._handle(header, body)

    def _handle(self, header: dict[str, Any], body: bytes) -> None:
        number, sandbox = header["n"], self.sandboxes.get(header.get("id", ""))
        if sandbox is not None and sandbox.stands and header["op"] not in WHILE_PAUSED:
            sandbox.held.append((header, body))
            return
        try:
            reply = getattr(self, f"do_{header['op']}")(header, body)
        except files.Refused as error:
            reply = {"error": error.kind, "message": str(error)}, b""
        except Failure as error:
            reply = {"error": error.kind, "message": str(error)}, b""
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EMFILE, errno.ENOMEM)
            reply = {"error": "capacity" if full else "backend", "message": str(error)}, b""
        except Exception as error:  # one request may fail, the sandboxes of all others may not fall with it
            reply = {"error": "backend", "message": f"{type(error).__name__}: {error}"}, b""
        if reply is not None:
            self._reply(number, *reply)

    def _reply(self, number: int, header: dict[str, Any], data: bytes = b"") -> None:
        self.outgoing.append(memoryview(frames.encode({"n": number, **header}, data)))
        self._flush()

    def _flush(self) -> None:
        while self.outgoing:
            try:
                sent = self.channel.send(self.outgoing[0])
            except BlockingIOError:
                break
            except OSError:
                self.open = False
                return
            rest = self.outgoing.popleft()[sent:]
            if rest:
                self.outgoing.appendleft(rest)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0)
        key = self.selector.get_key(self.channel)
        if key.events != wanted:
            self.selector.modify(self.channel, wanted, key.data)

    # --- requests ---------------------------------------------------------------------------------------------

    def do_prepare(self, header: dict[str, Any], body: bytes) -> Any:
        if header["id"] not in self.templates:
            folder = f"{self.state}/templates/{len(self.templates)}-{secrets.token_hex(2)}"
            self.templates[header["id"]] = Template(folder, wire.unpack_files(header["files"], body), header["spec"])
        return {}, b""

    def do_create(self, header: dict[str, Any], body: bytes) -> Any:
        source = header["source"]
        if source in self.templates:
            return self._children(State(self.templates[source]), header["count"])
        if source in self.snapshots:
            return self._children(self.snapshots[source], header["count"])
        raise Failure("missing", f"no template or snapshot {source!r} is known here")

    def _children(self, state: State, count: int) -> Any:
        rows: list[dict[str, str]] = []
        for _ in range(count):
            try:
                sandbox = Sandbox(f"{self.state}/live", state)
            except OSError as error:
                rows.append({"error": str(error)})
                continue
            self.sandboxes[sandbox.id] = sandbox
            rows.append({"id": sandbox.id})
        return {"children": rows}, b""

    def do_fork(self, header: dict[str, Any], body: bytes) -> Any:
        state = self._sandbox(header).freeze(self.store).hold()
        try:
            return self._children(state, header["count"])
        finally:
            state.drop()

    def do_snapshot(self, header: dict[str, Any], body: bytes) -> Any:
        name = f"snapshot-{secrets.token_hex(8)}"
        self.snapshots[name] = self._sandbox(header).freeze(self.store).hold()
        return {"id": name}, b""

    def do_release(self, header: dict[str, Any], body: bytes) -> Any:
        state = self.snapshots.pop(header["id"], None)
        if state is not None:
            state.drop()
        return {}, b""

    def do_read(self, header: dict[str, Any], body: bytes) -> Any:
        return {}, files.read(self._sandbox(header).fd, header["path"], header["limit"])[0]

    def do_write(self, header: dict[str, Any], body: bytes) -> Any:
        sandbox = self._sandbox(header)
        files.write(sandbox.fd, header["path"], body, sandbox.spec["file_bytes"])
        return {}, b""

    def do_list(self, header: dict[str, Any], body: bytes) -> Any:
        return {"entries": files.listing(self._sandbox(header).fd, header["path"])}, b""

    def do_changes(self, header: dict[str, Any], body: bytes) -> Any:
        writes, deletes, skipped = changes(self._sandbox(header), header["limit"])
        rows, data = wire.pack_files(writes)
        return {"writes": rows, "deletes": deletes, "skipped": skipped}, data

    def do_stats(self, header: dict[str, Any], body: bytes) -> Any:
        fds, frozen = len(os.listdir("/proc/self/fd")), self.store.frozen_bytes
        counts = {"sandboxes": len(self.sandboxes), "running": len(self.turns.running)}
        homes = sum(used_bytes(sandbox.home.path) for sandbox in self.sandboxes.values())
        return {**counts, "descriptors": fds, "frozen_bytes": frozen, "home_bytes": homes}, b""

    def do_attach(self, header: dict[str, Any], body: bytes) -> Any:
        self._sandbox(header)
        return {}, b""

    def do_destroy(self, header: dict[str, Any], body: bytes) -> Any:
        sandbox = self.sandboxes.pop(header["id"], None)
        if sandbox is None:
            return {}, b""
        self._resume(sandbox)
        if sandbox.sessions is not None:
            sandbox.sessions.close()
        for number in self.turns.give_up(sandbox):
            self._reply(number, {"error": "gone", "message": "the sandbox was destroyed"})
        if not sandbox.commands:
            self._close(sandbox)
            return {}, b""
        sandbox.destroyed_by = header["n"]
        return None  # replied to when its last command is gone

    def _went_on(self, sandbox: Sandbox) -> None:
        """A command of it has ended."""
        if not sandbox.commands and sandbox.destroyed_by is not None:
            self._close(sandbox)
            self._reply(sandbox.destroyed_by, {})

    def _close(self, sandbox: Sandbox) -> None:
        if sandbox.relay is not None:
            self.selector.unregister(sandbox.relay)
        sandbox.close()

    def do_pause(self, header: dict[str, Any], body: bytes) -> Any:
        self.pauses.ask(self._sandbox(header), header["n"])

    def do_resume(self, header: dict[str, Any], body: bytes) -> Any:
        self._resume(self._sandbox(header))
        return {}, b""

    def _resume(self, sandbox: Sandbox) -> None:
        self.pauses.over(sandbox)
        sandbox.resume()
        held, sandbox.held = sandbox.held, []
        for request in held:
            self._handle(*request)
        self.turns.go_on()

    def do_exec(self, header: dict[str, Any], body: bytes) -> Any:
        sandbox = self._sandbox(header)
        os.close(files.open_folder(sandbox.fd, header["cwd"]))
        if not are_words(header["argv"]):
            return not_started(header["argv"], UNFIT)
        self.turns.wait(sandbox, header, body)
        return None

    def do_session(self, header: dict[str, Any], body: bytes) -> Any:
        sandbox = self._sandbox(header)
        if not are_words(header["argv"]):
            return not_started(header["argv"], UNFIT)
        if sandbox.sessions is None:
            sandbox.sessions = Sessions(lambda shell, first: self.turns.shell(sandbox, shell, first), self._reply)
        sandbox.sessions.ask(header)
        return None

    def do_kill(self, header: dict[str, Any], body: bytes) -> Any:
        """Nobody waits for the command of that request any more."""
        sandbox = self.sandboxes.get(header["id"])
        if sandbox is not None:
            if sandbox.sessions is not None:
                sandbox.sessions.give_up(header["number"])
            self.turns.give_up(sandbox, header["number"])
        return {}, b""

    def do_relay(self, header: dict[str, Any], body: bytes) -> Any:
        sandbox = self._sandbox(header)
        if header["act"] != "listen":
            if sandbox.relay is None:
                raise Failure("backend", "no network was allowed")
            sandbox.relay.ask(header, body)
            return None
        relay = Relay(self._reply)
        try:
            sandbox.room_of(self.rooms).open_way_out(relay)
        except OSError:
            relay.close()
            raise
        sandbox.relay = relay
        self.selector.register(relay, selectors.EVENT_READ, relay.step)
        return {}, b""

    def _sandbox(self, header: dict[str, Any]) -> Sandbox:
        found = self.sandboxes.get(header["id"])
        if found is None:
            raise Failure("gone", f"there is no sandbox {header['id']}")
        return found
