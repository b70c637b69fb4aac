"""Processes of one sort: so many places, each held by a process that is started anew when it vanishes.

Whoever vanishes is noticed at once, by a call that only its end answers; whoever is there and does not answer, by what
it is asked next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import Factory, define

from composer_core.errors import WorkLost
from composer_plugin_ray.line import portable
from composer_plugin_ray.restarts import Restarts

if TYPE_CHECKING:  # this module knows no Ray
    from composer_plugin_ray.remote import Remote


class Owner(Protocol):
    """Who uses the members."""

    async def ready(self, pool: Pool, name: str, place: int) -> Remote:
        """Start a process of that name; return when it can serve."""
        ...

    async def joined(self, pool: Pool, remote: Remote) -> None:
        """It serves as soon as this returns."""
        ...

    async def vanished(self, pool: Pool, name: str, error: WorkLost) -> None:
        """It serves no more."""
        ...

    def lost(self, error: WorkLost) -> None:
        """A process is gone, whether it had served or not."""
        ...

    def failed(self, error: Exception) -> None:
        """No more processes are started."""
        ...


@define(eq=False)
class Pool:
    """Members by name, such as replica-0.2: the process that was started third at place 0; single-use."""

    sort: str
    size: int
    owner: Owner
    restarts: Restarts
    answer_timeout_s: float
    """For what a member does in a moment."""
    members: dict[str, Remote] = Factory(dict)
    _started: int = 0
    _lives: Counter[int] = Factory(Counter)
    """Processes that were started so far, by place."""
    _places: dict[str, int] = Factory(dict)
    """Of the members."""
    _watches: set[asyncio.Task[None]] = Factory(set)

    async def open(self) -> None:
        """All places filled.

        Raises:
            ComposerError: a process could not be started, or too many vanished.
        """
        await together([self._fill(place) for place in range(self.size)])

    async def _fill(self, place: int) -> None:
        """Start processes there until one serves: a machine may go while it is given its first."""
        while True:
            try:
                return await self._start(place)
            except WorkLost as error:
                if not self.restarts.knows(error):
                    self.owner.lost(error)
                    self.restarts.spend(error)

    async def _start(self, place: int) -> None:
        name = f"{self.sort}-{place}.{self._started}"
        self._started += 1
        self._lives[place] += 1
        remote = await self.owner.ready(self, name, place)
        self.members[name], self._places[name] = remote, place
        try:
            await self.owner.joined(self, remote)
        except BaseException:
            self._forget(remote)
            remote.kill()
            raise
        watch = asyncio.create_task(self._watch(place, remote))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _watch(self, place: int, remote: Remote) -> None:
        """Replace a member when it vanishes."""
        error = await remote.gone()
        try:
            await self._drop(remote, error)
            self.restarts.spend(error)
            await self._fill(place)
        except Exception as why:  # nobody else would say why the place stays empty
            self.owner.failed(portable(why))

    async def _drop(self, remote: Remote, error: WorkLost) -> None:
        if self._forget(remote):
            self.owner.lost(error)
            await self.owner.vanished(self, remote.name, error)

    def _forget(self, remote: Remote) -> bool:
        """Whether it was a member."""
        self._places.pop(remote.name, None)
        return self.members.pop(remote.name, None) is not None

    def restarted(self) -> Mapping[str, int]:
        """How often the place of each member had lost its process before."""
        return {name: self._lives[place] - 1 for name, place in self._places.items()}

    async def check(self, name: str) -> None:
        """A member that has vanished serves no more, from now on: its watch may not have been told yet."""
        if remote := self.members.get(name):
            try:
                await self._answered(remote, remote.found())
            except WorkLost as error:
                await self._drop(remote, error)

    async def tell(self, remote: Remote, method: str, *args: Any) -> None:
        """Raises WorkLost for one that is gone, also because it did not answer in time and was killed."""
        await self._answered(remote, remote.call(method, *args))

    async def tell_all(self, method: str, *args: Any) -> None:
        """Every member; who vanishes meanwhile needs no telling."""
        told = (self.tell(remote, method, *args) for remote in tuple(self.members.values()))
        for error in await asyncio.gather(*told, return_exceptions=True):
            if isinstance(error, BaseException) and not isinstance(error, WorkLost):
                raise error

    async def _answered(self, remote: Remote, answer: Awaitable[Any]) -> None:
        try:
            async with asyncio.timeout(self.answer_timeout_s):
                await answer
        except TimeoutError:
            remote.kill()
            limit = f"within answer_timeout_s = {self.answer_timeout_s:g}"
            raise WorkLost(f"{remote.name} has not answered", who="ray/ray", expected=limit) from None

    async def close(self, timeout_s: float) -> None:
        """Members put away what they hold, or are killed when that takes too long."""
        await cancel(tuple(self._watches))
        members, self.members = self.members, {}
        await asyncio.gather(*(remote.end(timeout_s) for remote in members.values()))


async def together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All of it, or the first error and none of the rest."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
