"""A sandbox of the keeper: its home, its room, the commands that run in it, and how it is frozen for others."""

from __future__ import annotations

import os
import secrets
import time
from typing import Any

from composer_envkit.agent import processes
from composer_envkit.agent.relay import Relay
from composer_envkit.agent.sessions import Sessions
from composer_plugin_local.keeper.copying import lay_below
from composer_plugin_local.keeper.layers import FORKED, LEVELS, TREES, Home, Layer, State, Store, used_bytes
from composer_plugin_local.keeper.rooms import Room, Rooms


class Sandbox:
    """A home that is shown, and the commands that run in it."""

    def __init__(self, live: str, state: State) -> None:
        self.id = secrets.token_hex(8)
        self.commands: set[Any] = set()
        self.destroyed_by: int | None = None
        """Number of the destroy request that waits for the last command."""
        self.sessions: Sessions | None = None
        self.relay: Relay | None = None
        """Its way out, once a network was allowed."""
        self.stopping: processes.Stop | None = None
        """What was stopped to pause it, or is being so."""
        self.paused_s = 0.0
        """When all of it stood still; 0 while it is not paused."""
        self.held: list[tuple[dict[str, Any], bytes]] = []
        """Requests that came since."""
        self.room: Room | None = None
        """Where commands run, from the first on; it goes with the home."""
        self.home = _shown(Home(live, state))
        self.state = state.hold()

    @property
    def spec(self) -> dict[str, Any]:
        return self.state.template.spec

    @property
    def fd(self) -> int:
        """The workspace."""
        return self.home.workspace

    @property
    def uppers(self) -> list[str]:
        """Folders that hold what was changed in the workspace, newest first."""
        return [f"{self.home.path}/up/workspace", *(layer.upper("workspace") for layer in self.state.layers)]

    def room_of(self, rooms: Rooms) -> Room:
        """Where its commands run, made when the first one does; with its way out, if it has one. Raises OSError."""
        if self.room is None:
            room = rooms.make(self.home)
            try:
                if self.relay is not None:
                    room.open_way_out(self.relay)
            except BaseException:
                room.close()
                raise
            self.room = room
        return self.room

    @property
    def stands(self) -> bool:
        """Whether it is paused, or about to be: nothing new is begun in it."""
        return self.stopping is not None

    def pause(self) -> bool:
        """One look at whether all of it stands still by now; the first stops it. Raises OSError, and goes on then.

        The slots are stopped too, so that nothing new is started.
        """
        if self.stopping is None:
            self.stopping = processes.Stop(command.slot.pid for command in self.commands)
        try:
            if not self.paused_s and self.stopping.step():
                self.paused_s = time.monotonic()
        except OSError:
            self.resume()
            raise
        return bool(self.paused_s)

    def resume(self) -> None:
        """The time in between does not count for commands."""
        if self.stopping is not None:
            self.stopping.go_on()
        if self.paused_s:
            for command in self.commands:
                command.stood_still(time.monotonic() - self.paused_s)
        self.stopping, self.paused_s = None, 0.0

    def freeze(self, store: Store) -> State:
        """The files as they are now, to be created from. What a running command writes meanwhile may be half there."""
        if not any(map(self.home.touched, FORKED)):
            return self.state
        if self.commands:
            return self._copied(store)
        if len(self.state.layers) == LEVELS:
            merged = self._copied(store).hold()
            try:
                self._stack_on(merged, own=1)
            finally:
                merged.drop()
            return self.state
        return self._set_aside(store)

    def _set_aside(self, store: Store) -> State:
        namespace = os.dup(self.home.namespace)
        try:
            layer = Layer(self.home, store)
        except OSError:
            os.close(namespace)
            raise
        state = State(self.state.template, (layer, *self.state.layers), namespace).hold()
        try:
            self._stack_on(state, self.home.own + 1)
        finally:
            state.drop()
        return self.state

    def _stack_on(self, state: State, own: int) -> None:
        """Go on in a new home above `state`, which holds what the old one does; or, failing that, in the old one."""
        old = self.home
        self._leave_room()
        try:
            old.hide()
            self.home = _shown(Home(old.live, state, own))
        except BaseException:
            old.show()
            raise
        old.close()
        before, self.state = self.state, state.hold()
        before.drop()

    def _copied(self, store: Store) -> State:
        """The home copied, or merged with all layers below it where these are as many as can be."""
        whole = len(self.state.layers) == LEVELS
        below = State(self.state.template) if whole else self.state
        layers = self.state.layers if whole else ()
        held = sum((layer.size for layer in layers), used_bytes(self.home.path))
        copy = Home(self.home.live, below, size=held + self.spec["disk_bytes"])
        try:
            for tree in TREES if whole else FORKED:
                count = self.home.own if tree == "shm" else len(layers)
                for source in [
                    *(layer.upper(tree) for layer in reversed(layers[:count])),
                    f"{self.home.path}/up/{tree}",
                ]:
                    lay_below(source, f"{copy.path}/up/{tree}")
            return State(below.template, (Layer(copy, store), *below.layers), copy.leave())
        except BaseException:
            copy.close()
            raise

    def _leave_room(self) -> None:
        room, self.room = self.room, None
        if room is not None:
            room.close()

    def close(self) -> None:
        self._leave_room()
        if self.relay is not None:
            self.relay.close()
        self.home.close()
        self.state.drop()


def _shown(home: Home) -> Home:
    try:
        home.show()
    except BaseException:
        home.close()
        raise
    return home
