"""A node: a provider's sandboxes with owners and room.

Everything is reached through a lease, and what is not the lease's is missing. Templates are everybody's: an id is the
hash of what is in them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from attrs import define, field

from composer_core.errors import ComposerError, ConfigError, SandboxError, SandboxGone, TemplateMissing, Unsupported
from composer_core.protocols import Failed, Releases, SandboxBackend, SandboxProvider, SnapshotRef, TemplateSpec
from composer_plugin_server.figures import Figures
from composer_plugin_server.gate import Claim, Gate, Ticket
from composer_plugin_server.leases import Lease, Leases, Owned
from composer_plugin_server.ledger import Ledger
from composer_plugin_server.machine import Machine
from composer_plugin_server.making import Making, why
from composer_plugin_server.pools import Pools, Warm
from composer_plugin_server.settings import Settings
from composer_plugin_server.templates import Templates
from composer_plugin_server.wire import OFFERS, Child

T = TypeVar("T")
ENDS = 32
"""Sandboxes of one lease that are destroyed at once."""
MOST = 1024
"""Sandboxes of one request."""


@define(eq=False, repr=False)
class Node:
    """For one event loop; `keeper.Keeper` looks after it between requests."""

    provider: SandboxProvider
    plugin: str
    settings: Settings
    ledger: Ledger
    machine: Machine = field(factory=Machine)
    figures: Figures = field(factory=Figures)
    leases: Leases = field(factory=Leases)
    capabilities: frozenset[str] = frozenset()
    """What was found to work when the server started."""
    says: str = ""
    """What the provider says then of this machine, if it does."""
    gate: Gate = field(init=False)
    pools: Pools = field(init=False)
    making: Making = field(init=False)
    templates: Templates = field(init=False)

    def __attrs_post_init__(self) -> None:
        look = self.machine.look()
        self.gate = Gate(self.settings.admission.on(look), pressure=look)
        self.pools = Pools(self.settings.pools, self._make_warm, self._end_warm)
        self.gate.need = self.pools.give_way
        self.making = Making(self.provider, self.plugin, self.ledger, self.figures)
        self.templates = Templates(self.provider, self.plugin, self.settings.admission.reserve)

    @property
    def name(self) -> str:
        return self.ledger.node

    # --- creations ------------------------------------------------------------------------------------------------

    async def prepare(self, lease: Lease, spec: TemplateSpec) -> str:
        """The template's id, the same on every node. Raises WorkspaceMissing."""
        id = await self.templates.prepare(spec)
        self.pools.want(id, lease.group)
        return id

    async def create(self, lease: Lease, source: str, count: int, wait_s: float) -> list[Child]:
        """Raises what one creation raised, if none went well; else each child is there or says why not."""
        _countable(count)
        if self.templates.find(source):
            self.pools.want(source, lease.group)
        tasks = [asyncio.ensure_future(self._create_one(lease, source, wait_s)) for _ in range(count)]
        try:
            found = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self.making.detached(self.destroy_all(lease, _owned(ended)))
            raise
        if any(isinstance(one, TemplateMissing) for one in found):
            self.templates.forget(source)
        return await self._outcomes(lease, found)

    async def _create_one(self, lease: Lease, source: str, wait_s: float) -> Owned:
        snapshot, template = lease.snapshots.get(source), self.templates.find(source)
        if snapshot is None and template is None:
            raise TemplateMissing(f"no template or snapshot {source!r} is known here")
        ref, memory = snapshot or (template.ref, template.memory_bytes)  # type: ignore[union-attr]
        warm = None if snapshot else self.pools.take(source)
        if warm is not None:
            return _own(lease, Owned(warm.id, warm.backend, warm.ticket, memory, (), source, time.monotonic()))
        ticket = await self._room(1, memory, wait_s)
        id, backend = await self.making.make(ref, ticket)
        return _own(lease, Owned(id, backend, ticket, memory, (), source, time.monotonic()))

    async def _room(self, count: int, each_bytes: int, wait_s: float) -> Ticket:
        started = time.monotonic()
        ticket = await self.gate.enter(Claim(count, count * each_bytes), wait_s)
        self.figures.took("wait", time.monotonic() - started)
        return ticket

    async def fork(self, lease: Lease, id: str, count: int, wait_s: float) -> list[Child]:
        """Children of one capture; more than the node can ever hold are refused one by one."""
        _countable(count)
        parent = self.find(lease, id)
        _need(parent, "forks")
        most = max(1, min(count, self.gate.most(parent.memory_bytes)))
        ticket = await self._room(most, parent.memory_bytes, wait_s)
        making = self.making.detached(self._forked(lease, parent, ticket))
        try:
            found = await asyncio.shield(making)
        except asyncio.CancelledError:
            self.making.detached(self._unwanted(lease, making))
            raise
        more = [SandboxError(f"this node holds {most} sandboxes of this size")] * (count - most)
        return await self._outcomes(lease, [*found, *more])

    async def _forked(self, lease: Lease, parent: Owned, ticket: Ticket) -> list[Owned | ComposerError]:
        ids = [self.making.new_id() for _ in range(ticket.claim.sandboxes)]

        async def fork() -> Any:
            self.find(lease, parent.id)  # it may have ended while its children waited
            async with _inside(parent) as backend:
                return await backend.fork(len(ids))  # type: ignore[attr-defined]

        made = await self.making.all_or_none(ids, ticket, "fork", fork)
        now = time.monotonic()
        return [
            why(child)
            if isinstance(child, Failed)
            else _own(lease, Owned(id, child.backend, ticket, parent.memory_bytes, (), parent.source, now))
            for id, child in zip(ids, made, strict=True)
        ]

    async def _unwanted(self, lease: Lease, making: Awaitable[list[Owned | ComposerError]]) -> None:
        with suppress(ComposerError):
            await self.destroy_all(lease, _owned(await making))

    async def _outcomes(self, lease: Lease, found: Sequence[Owned | BaseException]) -> list[Child]:
        """What a client is told of its children; whoever left meanwhile gets none."""
        made = _owned(found)
        broken = [one for one in found if isinstance(one, BaseException)]
        fatal = [one for one in broken if not isinstance(one, ComposerError)]
        if lease.ended or fatal or not made:
            await self.destroy_all(lease, made)
            raise (fatal or broken or [SandboxGone("the lease ended")])[0]
        return [
            Child(one.id, one.offers) if isinstance(one, Owned) else Child(error=str(one), retryable=_retryable(one))
            for one in found
        ]

    # --- what a backend does --------------------------------------------------------------------------------------

    def find(self, lease: Lease, id: str) -> Owned:
        """Raises SandboxGone, also for what is another's."""
        owned = lease.sandboxes.get(id)
        if owned is None:
            raise SandboxGone(f"there is no sandbox {id}")
        return owned

    async def call(self, lease: Lease, id: str, act: str, does: Callable[[Any], Awaitable[T]], need: str = "") -> T:
        """Something that the backend does, if it offers what is needed."""
        owned = self.find(lease, id)
        if need:
            _need(owned, need)
        started = time.perf_counter()
        async with _inside(owned) as backend:
            result = await self.making.asked(act, lambda: does(backend))
        if act in self.figures.times_s:
            self.figures.took(act, time.perf_counter() - started)
        else:
            self.figures.done[act] += 1
        return result

    async def pause(self, lease: Lease, id: str) -> None:
        await self.call(lease, id, "pause", lambda backend: backend.pause(), "pauses")
        self.find(lease, id).paused = True

    async def resume(self, lease: Lease, id: str) -> None:
        await self.call(lease, id, "resume", lambda backend: backend.resume(), "pauses")
        self.find(lease, id).paused = False

    async def snapshot(self, lease: Lease, id: str, full: bool) -> str:
        """The id of what was captured."""
        memory, need = self.find(lease, id).memory_bytes, "full_snapshots" if full else "forks"
        ref: SnapshotRef = await self.call(
            lease, id, "snapshot", lambda one: one.full_snapshot() if full else one.snapshot(), need
        )
        name = f"{self.name}-{secrets.token_hex(10)}"
        lease.snapshots[name] = (ref, memory)
        if lease.ended:
            await self.release(lease, name)
            raise SandboxGone("the lease ended")
        return name

    async def release(self, lease: Lease, name: str) -> None:
        """Safe twice. A provider that cannot let go of a snapshot holds it until the server ends."""
        ref, _ = lease.snapshots.pop(name, (None, 0))
        if ref and isinstance(self.provider, Releases):
            provider = self.provider
            await self.making.asked("release", lambda: provider.release(ref))
            self.figures.done["release"] += 1

    def renew(self, lease: Lease, id: str, lease_s: float) -> None:
        self.find(lease, id).until_s = time.monotonic() + lease_s

    # --- ends -----------------------------------------------------------------------------------------------------

    async def destroy(self, lease: Lease, id: str) -> None:
        """Safe twice: what is gone, or another's, is left alone."""
        owned = lease.sandboxes.pop(id, None)
        if owned is not None:
            await self.making.end(owned)

    async def destroy_all(self, lease: Lease, sandboxes: Sequence[Owned]) -> None:
        gate = asyncio.Semaphore(ENDS)

        async def one(owned: Owned) -> None:
            async with gate:
                await self.destroy(lease, owned.id)

        await asyncio.gather(*map(one, sandboxes), return_exceptions=True)

    async def end(self, lease: Lease) -> None:
        """A lease with all that it holds."""
        self.leases.remove(lease)
        await self.destroy_all(lease, list(lease.sandboxes.values()))
        await asyncio.gather(*(self.release(lease, name) for name in list(lease.snapshots)), return_exceptions=True)

    async def close(self) -> None:
        """End all leases and the provider."""
        self.gate.close()
        await self.pools.close()
        await asyncio.gather(*map(self.end, self.leases), return_exceptions=True)
        await self.templates.close()
        await self.making.close()

    # --- pools ----------------------------------------------------------------------------------------------------

    async def _make_warm(self, source: str) -> Warm | None:
        template = self.templates.find(source)
        ticket = template and self.gate.enter_now(Claim(1, template.memory_bytes))
        if not template or not ticket:
            return None
        id, backend = await self.making.make(template.ref, ticket)
        return Warm(id, backend, ticket)

    async def _end_warm(self, warm: Warm) -> None:
        await self.making.end(Owned(warm.id, warm.backend, warm.ticket, 0, (), "", time.monotonic()))


@asynccontextmanager
async def _inside(owned: Owned) -> AsyncIterator[SandboxBackend]:
    owned.running += 1
    try:
        yield owned.backend
    finally:
        owned.running -= 1


def _own(lease: Lease, owned: Owned) -> Owned:
    """It is the lease's from now on; its offers are the Protocols that its backend has."""
    owned.offers = tuple(word for word, protocol in OFFERS.items() if isinstance(owned.backend, protocol))
    lease.sandboxes[owned.id] = owned
    return owned


def _owned(found: Sequence[Any]) -> list[Owned]:
    return [one for one in found if isinstance(one, Owned)]


def _countable(count: int) -> None:
    if not 1 <= count <= MOST:
        raise ConfigError(f"a request makes 1 to {MOST} sandboxes", found=str(count))


def _need(owned: Owned, word: str) -> None:
    if word not in owned.offers:
        raise Unsupported(f"this sandbox does not offer {word!r}", expected=f"one of {', '.join(owned.offers)}")


def _retryable(error: BaseException) -> bool:
    return isinstance(error, SandboxError) and error.retryable
