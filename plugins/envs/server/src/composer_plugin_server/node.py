"""A node: a provider's sandboxes with owners, room and a past. The only place that calls the provider.

Everything is reached through a lease, and what is not the lease's is missing. What is made is written to the ledger
before the provider is asked, and taken off when it has ended; a sandbox that could not be destroyed keeps its room and
is tried again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from attrs import asdict, define, field, frozen

from composer_core.errors import (
    BackendError,
    ComposerError,
    ConfigError,
    NoCapacity,
    PluginFault,
    SandboxError,
    SandboxGone,
    TemplateMissing,
    Unsupported,
    boundary,
)
from composer_core.protocols import (
    Created,
    Failed,
    SandboxBackend,
    SandboxProvider,
    SnapshotRef,
    TemplateRef,
    TemplateSpec,
)
from composer_core.trees import Tree
from composer_plugin_server.figures import Figures
from composer_plugin_server.gate import Claim, Gate, Ticket
from composer_plugin_server.leases import Lease, Leases, Owned
from composer_plugin_server.ledger import Ledger
from composer_plugin_server.machine import Machine
from composer_plugin_server.pools import Pools, Warm
from composer_plugin_server.settings import Settings
from composer_plugin_server.wire import OFFERS, Child, WorkspaceMissing

T = TypeVar("T")
TREES = 16
"""Workspaces that are held between their arrival and their template."""
ENDS = 32
"""Sandboxes of one lease that are destroyed at once."""
END_S = 5.0
"""How long what is being made or destroyed may take to end when the server does."""
MOST = 1024
"""Sandboxes of one request."""


@frozen
class _Template:
    ref: TemplateRef
    memory_bytes: int


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
    gate: Gate = field(init=False)
    pools: Pools = field(init=False)
    ending: dict[str, Owned] = field(factory=dict)
    """Being destroyed, or tried again."""
    _trees: OrderedDict[str, Tree] = field(factory=OrderedDict)
    _templates: dict[str, _Template] = field(factory=dict)
    _preparing: dict[str, asyncio.Task[_Template]] = field(factory=dict)
    _tasks: set[asyncio.Task[Any]] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        look = self.machine.look()
        self.gate = Gate(self.settings.admission.on(look), pressure=look)
        self.pools = Pools(self.settings.pools, self._make_warm, self._end_warm)
        self.gate.need = self.pools.give_way

    @property
    def name(self) -> str:
        return self.ledger.node

    # --- templates ------------------------------------------------------------------------------------------------

    def offer(self, tree: Tree) -> None:
        """The files of a workspace, until its template is prepared."""
        self._trees[tree.ref.sha256] = tree
        while len(self._trees) > TREES:
            self._trees.popitem(last=False)

    async def prepare(self, lease: Lease, spec: TemplateSpec) -> str:
        """The template's id, the same on every node.

        Raises:
            WorkspaceMissing: its files must be offered first.
        """
        text = json.dumps(asdict(spec), sort_keys=True)
        id = hashlib.sha256(text.encode()).hexdigest()
        if id not in self._templates:
            task = self._preparing.get(id)
            if task is None:
                tree = self._trees.get(spec.workspace.sha256)
                if tree is None:
                    raise WorkspaceMissing("the files of this workspace are not here", found=spec.workspace.sha256)
                task = self._preparing[id] = asyncio.ensure_future(self._prepare(id, spec, tree))
            await asyncio.shield(task)
        self.pools.want(id, lease.group)
        return id

    async def _prepare(self, id: str, spec: TemplateSpec, tree: Tree) -> _Template:
        try:
            with boundary("sandboxes", self.plugin):
                ref = await self.provider.prepare(spec, tree)
            memory = int(spec.memory_bytes * self.settings.admission.reserve)
            self._templates[id] = _Template(ref, memory)
            return self._templates[id]
        finally:
            del self._preparing[id]

    # --- sandboxes ------------------------------------------------------------------------------------------------

    async def create(self, lease: Lease, source: str, count: int, wait_s: float) -> list[Child]:
        """Raises what one creation raised, if none went well; else each child is there or says why not."""
        _countable(count)
        if source in self._templates:
            self.pools.want(source, lease.group)
        tasks = [asyncio.ensure_future(self._create_one(lease, source, wait_s)) for _ in range(count)]
        try:
            found = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._detached(self.destroy_all(lease, [one for one in ended if isinstance(one, Owned)]))
            raise
        if any(isinstance(one, TemplateMissing) for one in found):
            self._templates.pop(source, None)
        return await self._outcomes(lease, found)

    async def _create_one(self, lease: Lease, source: str, wait_s: float) -> Owned:
        snapshot = lease.snapshots.get(source)
        template = self._templates.get(source)
        if snapshot is None and template is None:
            raise TemplateMissing(f"no template or snapshot {source!r} is known here")
        ref, memory = snapshot or (template.ref, template.memory_bytes)  # type: ignore[union-attr]
        warm = None if snapshot else self.pools.take(source)
        if warm is not None:
            return self._own(lease, warm.id, warm.backend, warm.ticket, source, memory)
        ticket = await self._room(1, memory, wait_s)
        id, backend = await self._make(ref, ticket)
        return self._own(lease, id, backend, ticket, source, memory)

    async def _room(self, count: int, each_bytes: int, wait_s: float) -> Ticket:
        started = time.monotonic()
        ticket = await self.gate.enter(Claim(count, count * each_bytes), wait_s)
        self.figures.took("wait", time.monotonic() - started)
        return ticket

    async def _make(self, ref: TemplateRef | SnapshotRef, ticket: Ticket) -> tuple[str, SandboxBackend]:
        """One sandbox of the provider. Making it is never cut off halfway: if the caller gives up, it is destroyed."""
        id = self._new_id()
        making = self._detached(self._made(id, ref, ticket))
        try:
            return id, await asyncio.shield(making)
        except asyncio.CancelledError:
            self._detached(self._unwanted(id, making, ticket))
            raise

    async def _made(self, id: str, ref: TemplateRef | SnapshotRef, ticket: Ticket) -> SandboxBackend:
        self.ledger.starting(id)
        started = time.perf_counter()
        try:
            (child,) = _exactly(1, await self._asked("create", lambda: self.provider.create(ref, 1)))
            if isinstance(child, Failed):
                raise (NoCapacity if child.retryable else SandboxError)(child.error)
        except BaseException:
            self.ledger.ended(id)
            ticket.drop()
            raise
        ticket.made()
        self.ledger.made(id, child.backend.id)
        self.figures.took("create", time.perf_counter() - started)
        return child.backend

    async def _unwanted(self, id: str, making: Awaitable[SandboxBackend], ticket: Ticket) -> None:
        with suppress(ComposerError):
            await self._end(Owned(id, await making, ticket, 0, (), "", time.monotonic()))

    def _own(self, lease: Lease, id: str, backend: SandboxBackend, ticket: Ticket, source: str, memory: int) -> Owned:
        offers = tuple(word for word, protocol in OFFERS.items() if isinstance(backend, protocol))
        owned = Owned(id, backend, ticket, memory, offers, source, time.monotonic())
        lease.sandboxes[id] = owned
        return owned

    async def fork(self, lease: Lease, id: str, count: int, wait_s: float) -> list[Child]:
        """Children of one capture; more than the node can ever hold are refused one by one."""
        _countable(count)
        parent = self.find(lease, id)
        _need(parent, "forks")
        most = max(1, min(count, self.gate.most(parent.memory_bytes)))
        ticket = await self._room(most, parent.memory_bytes, wait_s)
        making = self._detached(self._forked(lease, parent, ticket))
        try:
            found = await asyncio.shield(making)
        except asyncio.CancelledError:
            self._detached(self._unwanted_children(lease, making))
            raise
        more = [SandboxError(f"this node holds {most} sandboxes of this size")] * (count - most)
        return await self._outcomes(lease, [*found, *more])

    async def _forked(self, lease: Lease, parent: Owned, ticket: Ticket) -> list[Owned | ComposerError]:
        ids = [self._new_id() for _ in range(ticket.claim.sandboxes)]
        for id in ids:
            self.ledger.starting(id)
        started = time.perf_counter()
        try:
            self.find(lease, parent.id)  # it may have ended while its children waited
            async with self._inside(parent) as backend:
                fork: Any = backend
                made = _exactly(len(ids), await self._asked("fork", lambda: fork.fork(len(ids))))
        except BaseException:
            for id in ids:
                self.ledger.ended(id)
            ticket.drop()
            raise
        ticket.made()
        self.figures.took("fork", time.perf_counter() - started)
        return [self._child(lease, parent, id, outcome, ticket) for id, outcome in zip(ids, made, strict=True)]

    def _child(
        self, lease: Lease, parent: Owned, id: str, outcome: Created | Failed, ticket: Ticket
    ) -> Owned | ComposerError:
        if isinstance(outcome, Failed):
            self.ledger.ended(id)
            ticket.leave()
            return (NoCapacity if outcome.retryable else SandboxError)(outcome.error)
        self.ledger.made(id, outcome.backend.id)
        return self._own(lease, id, outcome.backend, ticket, parent.source, parent.memory_bytes)

    async def _unwanted_children(self, lease: Lease, making: Awaitable[list[Owned | ComposerError]]) -> None:
        with suppress(ComposerError):
            await self.destroy_all(lease, [one for one in await making if isinstance(one, Owned)])

    async def _outcomes(self, lease: Lease, found: Sequence[Owned | BaseException]) -> list[Child]:
        """What a client is told of its children; whoever left meanwhile gets none."""
        made = [one for one in found if isinstance(one, Owned)]
        broken = [one for one in found if isinstance(one, BaseException)]
        fatal = [one for one in broken if not isinstance(one, ComposerError)]
        if lease.ended or fatal or not made:
            await self.destroy_all(lease, made)
            raise (fatal or broken or [SandboxGone("the lease ended")])[0]
        return [
            Child(one.id, one.offers) if isinstance(one, Owned) else Child(error=str(one), retryable=_retryable(one))
            for one in found
        ]

    def find(self, lease: Lease, id: str) -> Owned:
        """Raises SandboxGone, also for what is another's."""
        owned = lease.sandboxes.get(id)
        if owned is None:
            raise SandboxGone(f"there is no sandbox {id}")
        return owned

    async def call(self, lease: Lease, id: str, act: str, does: Callable[[Any], Awaitable[T]], need: str = "") -> T:
        """Something that the backend does."""
        owned = self.find(lease, id)
        if need:
            _need(owned, need)
        started = time.perf_counter()
        async with self._inside(owned) as backend:
            result = await self._asked(act, lambda: does(backend))
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
        need = "full_snapshots" if full else "forks"
        ref: SnapshotRef = await self.call(
            lease, id, "snapshot", lambda one: one.full_snapshot() if full else one.snapshot(), need
        )
        name = f"{self.name}-{secrets.token_hex(10)}"
        lease.snapshots[name] = (ref, self.find(lease, id).memory_bytes)
        return name

    def renew(self, lease: Lease, id: str, lease_s: float) -> None:
        self.find(lease, id).until_s = time.monotonic() + lease_s

    # --- ends -----------------------------------------------------------------------------------------------------

    async def destroy(self, lease: Lease, id: str) -> None:
        """Safe twice: what is gone, or another's, is left alone."""
        owned = lease.sandboxes.pop(id, None)
        if owned is not None:
            await self._end(owned)

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
        lease.snapshots.clear()

    async def _end(self, owned: Owned) -> None:
        """Cancelling it does not stop it."""
        self.ending[owned.id] = owned
        await asyncio.shield(self._detached(self.finish(owned)))

    async def finish(self, owned: Owned) -> None:
        """Destroy what is `ending`; it stays there if that fails."""
        try:
            await self._asked("destroy", owned.backend.destroy)
        except SandboxGone:
            pass
        except Exception:
            self.figures.counts["stuck"] += 1
            raise
        if self.ending.pop(owned.id, None):
            self.figures.done["destroy"] += 1
            self.gone(owned)

    def gone(self, owned: Owned) -> None:
        """It exists no more, however that came."""
        self.ledger.ended(owned.id)
        owned.ticket.leave()

    async def close(self) -> None:
        """End all leases and the provider."""
        self.gate.close()
        await self.pools.close()
        await asyncio.gather(*map(self.end, self.leases), return_exceptions=True)
        for task in list(self._preparing.values()):
            task.cancel()
        await self._settle()
        with boundary("sandboxes", self.plugin):
            await self.provider.close()

    async def _settle(self) -> None:
        """Wait for what goes on by itself, and cut off what does not end: closing the provider ends its part."""
        going = {*self._preparing.values(), *self._tasks}
        if going:
            _, late = await asyncio.wait(going, timeout=END_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # --- pools ----------------------------------------------------------------------------------------------------

    async def _make_warm(self, source: str) -> Warm | None:
        template = self._templates.get(source)
        ticket = template and self.gate.enter_now(Claim(1, template.memory_bytes))
        if not template or not ticket:
            return None
        id, backend = await self._make(template.ref, ticket)
        return Warm(id, backend, ticket)

    async def _end_warm(self, warm: Warm) -> None:
        await self._end(Owned(warm.id, warm.backend, warm.ticket, 0, (), "", time.monotonic()))

    # --- parts ----------------------------------------------------------------------------------------------------

    def _detached(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Goes on whoever gives up waiting for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._detached_ended)
        return task

    def _detached_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waited, and counted

    def _new_id(self) -> str:
        return f"{self.name}-{secrets.token_hex(8)}"

    @asynccontextmanager
    async def _inside(self, owned: Owned) -> AsyncIterator[SandboxBackend]:
        owned.running += 1
        try:
            yield owned.backend
        finally:
            owned.running -= 1

    async def _asked(self, act: str, call: Callable[[], Awaitable[T]]) -> T:
        """The provider's answer; whatever else it raises is attributed to it."""
        try:
            with boundary("sandboxes", self.plugin):
                return await call()
        except (ComposerError, PluginFault):
            self.figures.failed[act] += 1
            raise


def _exactly(count: int, children: Sequence[Created | Failed]) -> Sequence[Created | Failed]:
    if len(children) != count:
        raise BackendError(
            "the provider made another number of sandboxes", expected=str(count), found=str(len(children))
        )
    return children


def _countable(count: int) -> None:
    if not 1 <= count <= MOST:
        raise ConfigError(f"a request makes 1 to {MOST} sandboxes", found=str(count))


def _need(owned: Owned, word: str) -> None:
    if word not in owned.offers:
        raise Unsupported(f"this sandbox does not offer {word!r}", expected=f"one of {', '.join(owned.offers)}")


def _retryable(error: BaseException) -> bool:
    return isinstance(error, SandboxError) and error.retryable
