"""How sandboxes of a provider come and go: in the ledger from before they exist until after they are gone, in room that
was granted, never cut off halfway.

A provider that is cancelled while it makes a sandbox may make it nevertheless, and nobody would know. So making and
destroying go on by themselves; whoever gives up waiting has what comes of it destroyed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from attrs import define, field

from composer_core.errors import (
    BackendError,
    ComposerError,
    NoCapacity,
    PathError,
    QuotaError,
    SandboxError,
    SandboxGone,
    boundary,
)
from composer_core.protocols import Created, Failed, SandboxBackend, SandboxProvider, SnapshotRef, TemplateRef
from composer_plugin_server.figures import Figures
from composer_plugin_server.gate import Ticket
from composer_plugin_server.leases import Owned
from composer_plugin_server.ledger import Ledger

T = TypeVar("T")
ANSWERS = (PathError, QuotaError)
"""What a provider says of a request that cannot be met; it has done its part, and nothing has failed."""
END_S = 5.0
"""How long what is being made or destroyed may take to end when the server does."""


@define(eq=False, repr=False)
class Making:
    """For one event loop."""

    provider: SandboxProvider
    plugin: str
    ledger: Ledger
    figures: Figures
    ending: dict[str, Owned] = field(factory=dict)
    """Being destroyed, or to be tried again; they keep their room."""
    _tasks: set[asyncio.Task[Any]] = field(factory=set)

    def new_id(self) -> str:
        return f"{self.ledger.node}-{secrets.token_hex(8)}"

    async def asked(self, act: str, call: Callable[[], Awaitable[T]]) -> T:
        """The provider's answer; whatever else it raises is attributed to it."""
        try:
            with boundary("sandboxes", self.plugin):
                return await call()
        except ANSWERS:
            raise
        except ComposerError:
            self.figures.failed[act] += 1
            raise

    def detached(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Goes on whoever gives up waiting for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waited, and counted

    # --- one sandbox ----------------------------------------------------------------------------------------------

    async def make(self, ref: TemplateRef | SnapshotRef, ticket: Ticket) -> tuple[str, SandboxBackend]:
        """Our id, and the sandbox."""
        id = self.new_id()
        making = self.detached(self._made(id, ref, ticket))
        try:
            return id, await asyncio.shield(making)
        except asyncio.CancelledError:
            self.detached(self._unwanted(id, making, ticket))
            raise

    async def _made(self, id: str, ref: TemplateRef | SnapshotRef, ticket: Ticket) -> SandboxBackend:
        (child,) = await self.all_or_none([id], ticket, "create", lambda: self.provider.create(ref, 1))
        if isinstance(child, Failed):
            raise why(child)
        return child.backend

    async def _unwanted(self, id: str, making: Awaitable[SandboxBackend], ticket: Ticket) -> None:
        with suppress(ComposerError):
            await self.end(Owned(id, await making, ticket, 0, (), "", time.monotonic()))

    async def all_or_none(
        self, ids: Sequence[str], ticket: Ticket, act: str, call: Callable[[], Awaitable[Sequence[Created | Failed]]]
    ) -> Sequence[Created | Failed]:
        """Children of one call of the provider, under these ids; a child that failed gives its room back."""
        for id in ids:
            self.ledger.starting(id)
        started = time.perf_counter()
        try:
            children = await self.asked(act, call)
            if len(children) != len(ids):
                found = f"{len(children)}, expected {len(ids)}"
                raise BackendError("the provider made another number of sandboxes", who=self.plugin, found=found)
        except BaseException:
            for id in ids:
                self.ledger.ended(id)
            ticket.drop()
            raise
        ticket.made()
        self.figures.took(act, time.perf_counter() - started)
        for id, child in zip(ids, children, strict=True):
            if isinstance(child, Failed):
                self.ledger.ended(id)
                ticket.leave()
            else:
                self.ledger.made(id, child.backend.id)
        return children

    # --- ends -----------------------------------------------------------------------------------------------------

    async def end(self, owned: Owned) -> None:
        """Destroy it; cancelling this does not stop it."""
        self.ending[owned.id] = owned
        await asyncio.shield(self.detached(self.finish(owned)))

    async def finish(self, owned: Owned) -> None:
        """Destroy what is `ending`; it stays there if that fails."""
        try:
            await self.asked("destroy", owned.backend.destroy)
        except SandboxGone:
            pass
        except Exception:
            self.figures.counts["stuck"] += 1
            raise
        if self.ending.pop(owned.id, None):
            self.figures.done["destroy"] += 1
            self.gone(owned.id, owned.ticket)

    def gone(self, id: str, ticket: Ticket) -> None:
        """It exists no more, however that came."""
        self.ledger.ended(id)
        ticket.leave()

    async def close(self) -> None:
        """Wait for what goes on by itself, cut off what does not end, and close the provider, which ends its part."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=END_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        with boundary("sandboxes", self.plugin):
            await self.provider.close()


def why(child: Failed) -> SandboxError:
    """What a child that could not be made raises where it was the only one."""
    return (NoCapacity if child.retryable else SandboxError)(child.error)
