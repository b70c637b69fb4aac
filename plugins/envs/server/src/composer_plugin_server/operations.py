"""Requests that may be sent twice are worked on once: an operation is known by its lease and the client's key.

Whoever sends a key again gets the first one's answer, still coming or kept. A caller that gives up says so; one whose
connection is lost has some seconds to come back. What was made for a caller that never heard of it is undone.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from attrs import define, field, frozen

from composer_core.errors import SandboxUnreachable

Undo = Callable[[], Awaitable[None]]
Name = tuple[str, str]


@frozen
class Answer:
    """Status and body, and how to undo what they tell of."""

    status: int
    body: bytes
    undo: Undo | None = None
    headers: tuple[tuple[str, str], ...] = ()
    kind: str = "application/json"


@define(eq=False)
class _Operation:
    task: asyncio.Task[Answer]
    callers: int = 0
    heard: bool = False
    """Some caller was there when the answer came."""
    done_s: float = 0.0


@define(eq=False)
class Operations:
    """For one event loop. Work that raises is not remembered."""

    keep_s: float
    keep_bytes: int
    grace_s: float
    replayed: int = 0
    abandoned: int = 0
    _running: dict[Name, _Operation] = field(factory=dict)
    _kept: OrderedDict[Name, _Operation] = field(factory=OrderedDict)
    _held_bytes: int = 0
    _undoing: set[asyncio.Future[None]] = field(factory=set)

    async def once(self, owner: str, key: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of `work`, which is started unless the key is known."""
        name = (owner, key)
        found = self._running.get(name) or self._kept.get(name)
        if found is None:
            found = self._running[name] = _Operation(asyncio.ensure_future(work()))
            found.task.add_done_callback(lambda task: self._ended(name, found))
        else:
            self.replayed += 1
        found.callers += 1
        try:
            answer = await asyncio.shield(found.task)
        except asyncio.CancelledError:
            if found.task.cancelled() and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise SandboxUnreachable("the request was cancelled by its key") from None
            raise
        else:
            found.heard = True
            return answer
        finally:
            found.callers -= 1
            if not found.heard and not found.callers:
                asyncio.get_running_loop().call_later(self.grace_s, self._unheard, name, found)

    def _ended(self, name: Name, found: _Operation) -> None:
        failed = found.task.cancelled() or found.task.exception()
        if self._running.get(name) is not found:  # it was cancelled, and ended nevertheless
            if not failed:
                self._undo(found.task.result())
            return
        del self._running[name]
        if not failed:
            found.done_s = time.monotonic()
            self._kept[name] = found
            self._held_bytes += len(found.task.result().body)
            self.forget()

    def forget(self) -> None:
        """Drop answers that are old or too many."""
        now = time.monotonic()
        while self._kept:
            name, found = next(iter(self._kept.items()))
            age_s = now - found.done_s
            if (self._held_bytes <= self.keep_bytes and age_s < self.keep_s) or not (
                found.heard or age_s > 2 * self.grace_s
            ):
                return
            self._drop(name)

    def _drop(self, name: Name) -> _Operation:
        found = self._kept.pop(name)
        self._held_bytes -= len(found.task.result().body)
        return found

    def _unheard(self, name: Name, found: _Operation) -> None:
        if not found.heard and not found.callers and found in (self._running.get(name), self._kept.get(name)):
            self.abandoned += 1
            self.cancel(*name)

    def cancel(self, owner: str, key: str) -> None:
        """Nobody wants the answer: end the work, or undo it."""
        name = (owner, key)
        running = self._running.pop(name, None)
        if running is not None:
            running.task.cancel()
        elif name in self._kept:
            self._undo(self._drop(name).task.result())

    def _undo(self, answer: Answer) -> None:
        if answer.undo is not None:
            undoing = asyncio.ensure_future(answer.undo())
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undone)

    def _undone(self, undoing: asyncio.Future[None]) -> None:
        self._undoing.discard(undoing)
        if not undoing.cancelled():
            undoing.exception()  # told where a sandbox could not be destroyed

    async def close(self) -> None:
        running, self._running = self._running, {}
        for found in running.values():
            found.task.cancel()
        await asyncio.gather(*(found.task for found in running.values()), return_exceptions=True)
        await asyncio.gather(*self._undoing, return_exceptions=True)
        self._kept.clear()
