"""Templates, snapshots and forks are captures; every sandbox is a clone of one. The same for all monitors.

    image + memory -> base (cold boot, once for each, kept) -> clone + workspace -> template (capture)
    template, snapshot or live sandbox -> capture -> n clones

So no episode waits for a boot, and an idle sandbox costs what it has changed. This process holds all machines; they are
killed by the kernel when it ends, however that happens.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from composer_core.errors import (
    BackendError,
    ConfigError,
    NoCapacity,
    PrepareError,
    SandboxError,
    SandboxGone,
    TemplateMissing,
)
from composer_core.protocols import Created, Failed, SnapshotRef, TemplateRef, TemplateSpec
from composer_core.trees import Tree
from composer_envkit import check_workspace
from composer_plugin_microvm.channel import Broken
from composer_plugin_microvm.config import FirecrackerConfig, QemuConfig
from composer_plugin_microvm.drivers import Capture, Driver, promise
from composer_plugin_microvm.machine import Machine
from composer_plugin_microvm.plugin import CAPABILITIES
from composer_plugin_microvm.sandbox import Children, MachineSandbox

K = TypeVar("K")
T = TypeVar("T")
STEP_BYTES = 64 << 20
"""Sizes of memory are multiples of this, so that templates of similar limits share a base."""
GUEST_BYTES = 96 << 20
"""Memory of a guest beside what commands and their files may take: kernel, agent, page cache."""
SETTLE_S = 60.0
COMMANDS_PER_CORE = 4

FIX = "`composer-run microvm` says more; or choose another sandbox, say sandbox.use = 'local/namespaces'"


class MachineProvider:
    """A `SandboxProvider`."""

    def __init__(self, config: QemuConfig | FirecrackerConfig, driver: Driver) -> None:
        self.config = config
        self.driver = driver
        self._sources: dict[str, Capture] = {}
        self._running: set[str] = set()
        """Snapshots whose processes go on in what is created from them."""
        self._prepared: dict[str, asyncio.Task[None]] = {}
        self._bases: dict[int, asyncio.Task[Capture]] = {}
        self._live: dict[str, MachineSandbox] = {}
        self._starting = asyncio.Semaphore(self.config.starting)
        cores = len(os.sched_getaffinity(0))
        self.commands = asyncio.Semaphore(self.config.commands or COMMANDS_PER_CORE * cores)
        """Turns of commands: what many machines do at once would else run out of time that it never had."""
        self._making: set[asyncio.Task[Created | Failed]] = set()
        self._freeing: set[asyncio.Task[None]] = set()
        self._begun = 0
        self._closed = False

    # --- what machines are made of --------------------------------------------------------------------------------

    async def probe(self) -> frozenset[str]:
        """Boots, unless a base is kept, and runs a command in a clone."""
        tree = Tree.of({"file": ""})
        (child,) = await self.create(await self.prepare(TemplateSpec(tree.ref), tree))
        if isinstance(child, Failed):
            raise ConfigError("no machine starts here", found=child.error, fix=FIX)
        await child.backend.destroy()
        return CAPABILITIES

    def describe(self) -> str:
        return promise(self.driver)

    async def _base(self, ram_bytes: int) -> Capture:
        return await _once(self._bases, ram_bytes, lambda: self.driver.base(ram_bytes))

    def _open(self) -> None:
        if self._closed:
            raise SandboxGone("the provider was closed")

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        self._open()
        fields = {name: getattr(spec, name) for name in ("memory_bytes", "processes", "file_bytes", "disk_bytes")}
        fields["env"] = dict(spec.env)
        text = json.dumps([spec.workspace.sha256, sorted(spec.needs), fields], sort_keys=True)
        name = f"template-{hashlib.sha256(text.encode()).hexdigest()}"
        await _once(self._prepared, name, lambda: self._settle(name, spec, fields, workspace))
        return TemplateRef(name)

    async def _settle(self, name: str, spec: TemplateSpec, limits: dict[str, Any], workspace: Tree) -> None:
        """Push the workspace into a clone of the base, and capture that."""
        check_workspace(spec, workspace)
        files = workspace.files
        held = sum(len(file.data) + 4096 for file in files)
        need = spec.memory_bytes + spec.disk_bytes + held + GUEST_BYTES
        found = await self._base(-(-need // STEP_BYTES) * STEP_BYTES)
        machine = await self._start(found)
        try:
            rows = [[file.path, len(file.data), file.executable] for file in files]
            data = b"".join(file.data for file in files)
            asked: dict[str, Any] = {"files": rows, "limits": limits, "needs": list(spec.needs)}
            async with asyncio.timeout(SETTLE_S):
                header, _ = await machine.channel.ask("settle", data, **asked)
            if "error" in header:
                raise PrepareError("the workspace could not be laid out", found=str(header["message"])[:1000])
            if header["missing"]:
                fix = "name their Debian packages in sandbox.packages, or an image that has them in sandbox.rootfs"
                raise PrepareError(f"commands are not in the image: {', '.join(header['missing'])}", fix=fix)
            self._sources[name] = self._stored(await machine.capture())
        except (Broken, TimeoutError) as error:
            raise BackendError("a machine did not become a template", found=await machine.last_words()) from error
        finally:
            await machine.close()

    def _stored(self, capture: Capture) -> Capture:
        """Raises NoCapacity if there is no room for it."""
        held = sum(kept.size_bytes for kept in self._sources.values()) + capture.size_bytes
        if held > self.config.store_bytes:
            capture.close()
            raise NoCapacity(
                "templates and snapshots take more room than they may",
                found=f"{held} bytes",
                expected=f"sandbox.store_bytes = {self.config.store_bytes}",
            )
        return capture

    async def release(self, ref: SnapshotRef) -> None:
        capture = self._sources.pop(ref.id, None)
        self._running.discard(ref.id)
        if capture is not None:
            freeing = asyncio.ensure_future(self._free(capture))
            self._freeing.add(freeing)
            freeing.add_done_callback(self._freeing.discard)
            await asyncio.shield(freeing)

    async def _free(self, capture: Capture) -> None:
        """Once none is being made of it: its descriptors would be another's then."""
        if self._making:
            await asyncio.wait(self._making)
        capture.close()

    # --- machines -------------------------------------------------------------------------------------------------

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> list[Created | Failed]:
        self._open()
        found = self._sources.get(source.id)
        if found is None:
            raise TemplateMissing(f"no template or snapshot {source.id!r} is known here")
        return await self._children(found, n, source.id in self._running)

    async def _children(self, source: Capture, n: int, running: bool = False) -> Children:
        children = [asyncio.ensure_future(self._child(source, running)) for _ in range(n)]
        self._making.update(children)
        for child in children:
            child.add_done_callback(self._making.discard)
        try:
            return list(await asyncio.gather(*children))
        except BaseException:  # nobody would learn of those that were made
            for made in await asyncio.gather(*children, return_exceptions=True):
                if isinstance(made, Created):
                    await made.backend.destroy()
            raise

    async def _child(self, source: Capture, running: bool) -> Created | Failed:
        if len(self._live) + self._begun >= self.config.machines:
            return Failed(f"{self.config.machines} machines live already (sandbox.machines)")
        self._begun += 1
        try:
            machine = await self._start(source, running)
        except (SandboxError, OSError) as error:
            return Failed(str(error))
        finally:
            self._begun -= 1
        name = f"microvm-{secrets.token_hex(8)}"
        sandbox = MachineSandbox(name, machine, self)
        self._live[name] = sandbox
        return Created(sandbox)

    async def _start(self, source: Capture, running: bool = False) -> Machine:
        """A clone that has acknowledged who it is."""
        async with self._starting:
            self._open()
            machine = await self.driver.clone(source)
            try:
                await machine.adopt(running)
                self._open()
            except BaseException:
                await machine.close()
                raise
            return machine

    async def fork(self, sandbox: MachineSandbox, n: int) -> Children:
        capture = await sandbox.capture()
        try:
            return await self._children(capture, n)
        finally:
            capture.close()

    async def keep(self, sandbox: MachineSandbox, running: bool) -> SnapshotRef:
        name = f"snapshot-{secrets.token_hex(8)}"
        self._sources[name] = self._stored(await sandbox.capture())
        if running:
            self._running.add(name)
        return SnapshotRef(name)

    def forget(self, sandbox: MachineSandbox) -> None:
        self._live.pop(sandbox.id, None)

    async def attach(self, sandbox_id: str) -> MachineSandbox:
        if sandbox_id not in self._live:
            raise SandboxGone(f"there is no sandbox {sandbox_id}")
        return self._live[sandbox_id]

    async def close(self) -> None:
        """Safe twice. Machines end first; what they are made of goes after; then the first error is raised."""
        self._closed = True
        await asyncio.gather(*self._making, *self._freeing, return_exceptions=True)  # they see it and give up
        live, self._live = list(self._live.values()), {}
        tasks = [*self._prepared.values(), *self._bases.values()]
        for task in tasks:
            if not task.done():
                task.cancel()
        ended = await asyncio.gather(*(sandbox.destroy() for sandbox in live), return_exceptions=True)
        ended += await asyncio.gather(*(sandbox.machine.close() for sandbox in live), return_exceptions=True)
        await asyncio.gather(*tasks, return_exceptions=True)  # whose failures their callers were told
        for capture in self._sources.values():
            capture.close()
        for kept in self._bases.values():
            if not kept.cancelled() and kept.exception() is None:
                kept.result().close()
        self._sources.clear()
        self._prepared.clear()
        self._bases.clear()
        self.driver.close()
        for error in filter(None, ended):
            raise error


async def _once(tasks: dict[K, asyncio.Task[T]], key: K, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of the one task for `key`; a failure is not remembered, a cancelled caller stops no other."""
    task = tasks.get(key)
    if task is None or (task.done() and (task.cancelled() or task.exception())):
        task = tasks[key] = asyncio.ensure_future(make())
    return await asyncio.shield(task)
