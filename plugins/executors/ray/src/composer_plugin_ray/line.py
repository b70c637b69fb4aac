"""Many calls over few messages: a `Line` in one process, a `Desk` in another.

A message between actors costs a processor about half a millisecond on either side, an episode has two for each turn,
and hundreds of episodes are under way. So calls travel in batches. A line has at most two exchanges out: one waits at
the desk for something to be done, the other carries what was asked in the meantime and sends the first one home. Who
asks while an exchange is on its way joins the next: the busier the line, the larger its batches, without a clock.

A call that is cancelled is cancelled at the desk. When the desk's process vanishes, every call fails with WorkLost.
No Ray here: an exchange is an awaitable, whatever carries it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import Factory, define, frozen

from composer_core.errors import ComposerError, WorkLost

Method = Callable[..., Awaitable[Any]]


@frozen
class Order:
    """One call."""

    number: int
    method: str
    args: tuple[Any, ...]


@frozen
class Reply:
    """How it ended."""

    number: int
    value: Any = None
    error: Exception | None = None


@frozen
class Batch:
    """What goes to the desk at once."""

    client: str
    orders: tuple[Order, ...] = ()
    cancelled: tuple[int, ...] = ()


@frozen
class Numbered:
    """A note that grows old: of two, the one with the larger number counts, however they arrive."""

    number: int
    value: Any


def newer(known: Numbered | None, latest: Numbered) -> Numbered:
    return latest if known is None or latest.number > known.number else known


@frozen
class Answer:
    """What comes back: replies, and whatever the desk's host has to tell."""

    replies: tuple[Reply, ...]
    note: Any = None


Exchange = Callable[[Batch], Awaitable[Answer]]


@define
class _Box:
    """What a desk keeps for one client."""

    tasks: dict[int, asyncio.Task[None]] = Factory(dict)
    done: list[Reply] = Factory(list)
    waiting: asyncio.Event | None = None
    """Of the exchange that waits here."""

    def wake(self) -> None:
        if self.waiting:
            self.waiting.set()

    def forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self.tasks[number]


class Desk:
    """Does what lines ask of `methods`, which are told the client first; `note` is told with each answer."""

    def __init__(self, methods: Mapping[str, Method], note: Callable[[], Any] = lambda: None) -> None:
        self._methods, self._note = methods, note
        self._boxes: dict[str, _Box] = {}

    async def exchange(self, batch: Batch) -> Answer:
        """Start what is ordered, and come back when anything is done or the next exchange is here."""
        box = self._boxes.setdefault(batch.client, _Box())
        box.wake()
        for order in batch.orders:
            box.tasks[order.number] = begun = asyncio.create_task(self._do(batch.client, box, order))
            begun.add_done_callback(partial(box.forget, order.number))  # also of one that is cancelled before it begins
        for number in batch.cancelled:
            if task := box.tasks.get(number):
                task.cancel()
        if not box.done:
            box.waiting = mine = asyncio.Event()
            await mine.wait()
            if box.waiting is mine:
                box.waiting = None
        done, box.done = box.done, []
        return Answer(tuple(done), self._note())

    async def _do(self, client: str, box: _Box, order: Order) -> None:
        try:
            reply = Reply(order.number, await self._methods[order.method](client, *order.args))
        except asyncio.CancelledError:
            return
        except Exception as error:
            reply = Reply(order.number, error=portable(error))
        box.done.append(reply)
        box.wake()

    def tell(self) -> None:
        """Send everybody who waits the note of now, although nothing of theirs is done."""
        for box in self._boxes.values():
            box.wake()

    async def forget(self, client: str) -> None:
        """A client is gone: nothing of its is done any more."""
        box = self._boxes.pop(client, _Box())
        box.wake()
        await _end(tuple(box.tasks.values()))

    async def close(self) -> None:
        for client in tuple(self._boxes):
            await self.forget(client)


class Line:
    """Calls to one desk; safe for any number of tasks of one event loop."""

    def __init__(self, client: str, exchange: Exchange, note: Callable[[Any], None] = lambda note: None) -> None:
        self._client, self._exchange, self._note = client, exchange, note
        self._numbers = 0
        self._orders: list[Order] = []
        self._cancelled: list[int] = []
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._trips: set[asyncio.Task[None]] = set()
        self._broken: Exception | None = None

    async def call(self, method: str, *args: Any) -> Any:
        """Raises what the method raised, or WorkLost when its process is gone."""
        number = self._order(method, args)
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        self._go()
        try:
            return await future
        except asyncio.CancelledError:
            self._cancelled.append(number)
            self._go()
            raise
        finally:
            self._waiting.pop(number, None)

    def post(self, method: str, *args: Any) -> None:
        """A call whose end nobody waits for; it travels with the next one, or at once where none is under way."""
        self._order(method, args)
        self._go()

    def _order(self, method: str, args: tuple[Any, ...]) -> int:
        if self._broken:
            raise copy_of(self._broken)
        self._numbers += 1
        self._orders.append(Order(self._numbers, method, args))
        return self._numbers

    def _go(self) -> None:
        """Send what there is unless two exchanges are out; wait at the desk while there is anything to wait for."""
        most = 2 if self._orders or self._cancelled else 1 if self._waiting else 0
        if len(self._trips) < most and not self._broken:
            self._trips.add(asyncio.create_task(self._trip()))

    async def _trip(self) -> None:
        await asyncio.sleep(0)  # whoever asks in this round of the event loop comes along
        batch = Batch(self._client, tuple(self._orders), tuple(self._cancelled))
        self._orders, self._cancelled = [], []
        try:
            answer = await self._exchange(batch)
        except Exception as error:
            self._break(error)
        else:
            self._note(answer.note)
            for reply in answer.replies:
                self._deliver(reply)
        finally:
            self._trips.discard(asyncio.current_task())
        self._go()

    def _deliver(self, reply: Reply) -> None:
        future = self._waiting.get(reply.number)
        if future is None or future.done():
            return
        if reply.error is not None:
            future.set_exception(reply.error)
        else:
            future.set_result(reply.value)

    def _break(self, error: Exception) -> None:
        self._broken = self._broken or error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(copy_of(error))

    async def close(self, why: WorkLost | None = None) -> None:
        """Calls under way fail as lost, and say why."""
        self._break(why or WorkLost(f"the line of {self._client} is closed"))
        await _end(tuple(self._trips))


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


def copy_of(error: Exception) -> Exception:
    """One error for each who is told: the edges that it crosses write their names into it."""
    return type(error)(error.message, **error.fields) if isinstance(error, ComposerError) else error


def portable(error: Exception) -> Exception:
    """Errors of our tree travel as they are; others may hold what no other process can have."""
    return error if isinstance(error, ComposerError) else ComposerError(f"{type(error).__name__}: {error}")
