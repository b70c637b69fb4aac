"""`microvm/qemu`: templates, snapshots and forks are captures; every sandbox is a clone of one.

    image + memory -> base (cold boot, once for each, kept) -> clone + workspace -> template (capture)
    template, snapshot or live sandbox -> capture -> n clones

So no episode waits for a boot, and an idle sandbox costs what it has changed. This process holds all machines; they are
killed by the kernel when it ends, however that happens, and nothing of them has a name in a file system.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from attrs import define

from composer_core.errors import (
    BackendError,
    ConfigError,
    PrepareError,
    SandboxError,
    SandboxGone,
    TemplateMissing,
)
from composer_core.protocols import BuildContext, Created, Failed, SnapshotRef, TemplateRef, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_microvm.base import Base, base, wanted
from composer_plugin_microvm.channel import Broken
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.image import Image, cache_folder, image
from composer_plugin_microvm.machine import Capture, Machine
from composer_plugin_microvm.plugin import CAPABILITIES
from composer_plugin_microvm.sandbox import Children, QemuSandbox

K = TypeVar("K")
T = TypeVar("T")
LOG = logging.getLogger(__name__)
STEP_BYTES = 64 << 20
"""Sizes of memory are multiples of this, so that templates of similar limits share a base."""
GUEST_BYTES = 96 << 20
"""Memory of a guest beside what commands and their files may take: kernel, agent, page cache."""
FIX = "apt install qemu-system-x86 util-linux; or choose sandbox.use = 'local/namespaces'"
SETTLE_S = 60.0
COMMANDS_PER_CORE = 4


def build(config: QemuConfig, build: BuildContext) -> QemuProvider:
    return QemuProvider(config)


@define
class Source:
    """What clones are made of: a template or a snapshot."""

    base: Base
    capture: Capture


class QemuProvider:
    """A `SandboxProvider`."""

    def __init__(self, config: QemuConfig | None = None) -> None:
        self.config = config or QemuConfig()
        self.assured: bool | None = None
        """Whether the boundary is a processor's (KVM) and not an emulator's (TCG); None before the first machine."""
        self._sources: dict[str, Source] = {}
        self._prepared: dict[str, asyncio.Task[None]] = {}
        self._bases: dict[int, asyncio.Task[Base]] = {}
        self._live: dict[str, QemuSandbox] = {}
        self._starting = asyncio.Semaphore(self.config.starting)
        cores = len(os.sched_getaffinity(0))
        self.commands = asyncio.Semaphore(self.config.commands or COMMANDS_PER_CORE * cores)
        """Turns of commands: what many machines do at once would else run out of time that it never had."""
        self._making: set[asyncio.Task[Created | Failed]] = set()
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

    async def _base(self, ram_bytes: int) -> Base:
        return await _once(self._bases, ram_bytes, lambda: self._make_base(ram_bytes))

    async def _make_base(self, ram_bytes: int) -> Base:
        qemu = shutil.which(self.config.qemu)
        if qemu is None or shutil.which("setpriv") is None:
            raise ConfigError("sandboxes of microvm/qemu need QEMU and setpriv", found="neither or one", fix=FIX)
        made = await asyncio.to_thread(image, self.config, LOG.info)
        if self.config.accel == "kvm" or (self.config.accel == "auto" and kvm_offered()):
            try:
                return await self._boot(qemu, "kvm", ram_bytes, made)
            except BackendError as error:
                if self.config.accel == "kvm":
                    raise ConfigError("no machine boots with KVM here", found=str(error), fix=FIX) from error
                LOG.info("no machine boots with KVM here (%s), taking TCG", error.message)
        return await self._boot(qemu, "tcg", ram_bytes, made)

    async def _boot(self, qemu: str, accel: str, ram_bytes: int, made: Image) -> Base:
        want = await asyncio.to_thread(wanted, qemu, accel, ram_bytes, made)
        found = await base(want, made, cache_folder(self.config), self.config.boot_s, LOG.info)
        self.assured = accel == "kvm"
        return found

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        fields = {name: getattr(spec, name) for name in ("memory_bytes", "processes", "file_bytes", "disk_bytes")}
        fields["env"] = dict(spec.env)
        text = json.dumps([spec.workspace.sha256, sorted(spec.needs), fields], sort_keys=True)
        name = f"template-{hashlib.sha256(text.encode()).hexdigest()}"
        await _once(self._prepared, name, lambda: self._settle(name, spec, fields, workspace))
        return TemplateRef(name)

    async def _settle(self, name: str, spec: TemplateSpec, limits: dict[str, Any], workspace: Tree) -> None:
        """Push the workspace into a clone of the base, and capture that."""
        files = workspace.files
        held = sum(len(file.data) + 4096 for file in files)
        need = spec.memory_bytes + spec.disk_bytes + held + GUEST_BYTES
        found = await self._base(-(-need // STEP_BYTES) * STEP_BYTES)
        machine = await self._start(Source(found, found.booted))
        try:
            rows = [[file.path, len(file.data), file.executable] for file in files]
            data = b"".join(file.data for file in files)
            asked = machine.channel.ask("settle", data, files=rows, limits=limits, needs=list(spec.needs))
            header, _ = await asyncio.wait_for(asked, SETTLE_S)
            if "error" in header:
                raise PrepareError("the workspace could not be laid out", found=str(header["message"])[:1000])
            if header["missing"]:
                fix = "name their Debian packages in sandbox.packages, or an image that has them in sandbox.rootfs"
                raise PrepareError(f"commands are not in the image: {', '.join(header['missing'])}", fix=fix)
            self._sources[name] = self._stored(Source(found, await machine.capture()))
        except (Broken, TimeoutError) as error:
            raise BackendError("a machine did not become a template", found=await machine.last_words()) from error
        finally:
            await machine.close()

    def _stored(self, source: Source) -> Source:
        """Raises BackendError if there is no room for it."""
        held = sum(kept.capture.delta.size_bytes for kept in self._sources.values())
        if held + source.capture.delta.size_bytes > self.config.store_bytes:
            source.capture.close()
            raise BackendError(
                "templates and snapshots take more memory than they may",
                found=f"{held + source.capture.delta.size_bytes} bytes",
                expected=f"sandbox.store_bytes = {self.config.store_bytes}",
            )
        return source

    # --- machines -------------------------------------------------------------------------------------------------

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> list[Created | Failed]:
        found = self._sources.get(source.id)
        if found is None:
            raise TemplateMissing(f"no template or snapshot {source.id!r} is known here")
        return await self._children(found, n)

    async def _children(self, source: Source, n: int) -> Children:
        children = [asyncio.ensure_future(self._child(source)) for _ in range(n)]
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

    async def _child(self, source: Source) -> Created | Failed:
        if len(self._live) + self._begun >= self.config.machines:
            return Failed(f"{self.config.machines} machines live already (sandbox.machines)")
        self._begun += 1
        try:
            machine = await self._start(source)
        except (SandboxError, OSError) as error:
            return Failed(str(error))
        finally:
            self._begun -= 1
        name = f"microvm-{secrets.token_hex(8)}"
        sandbox = QemuSandbox(name, machine, source.base, self)
        self._live[name] = sandbox
        return Created(sandbox)

    async def _start(self, source: Source) -> Machine:
        """A clone that has acknowledged who it is."""
        async with self._starting:
            if self._closed:
                raise SandboxGone("the provider was closed")
            machine = await Machine.clone(source.base.hardware, source.base.ram, source.capture)
            try:
                await machine.adopt()
                if self._closed:
                    raise SandboxGone("the provider was closed")
            except BaseException:
                await machine.close()
                raise
            return machine

    async def fork(self, sandbox: QemuSandbox, n: int) -> Children:
        capture = await sandbox.machine.capture()
        try:
            return await self._children(Source(sandbox.base, capture), n)
        finally:
            capture.close()

    async def keep(self, sandbox: QemuSandbox) -> SnapshotRef:
        name = f"snapshot-{secrets.token_hex(8)}"
        self._sources[name] = self._stored(Source(sandbox.base, await sandbox.machine.capture()))
        return SnapshotRef(name)

    def forget(self, sandbox: QemuSandbox) -> None:
        self._live.pop(sandbox.id, None)

    async def attach(self, sandbox_id: str) -> QemuSandbox:
        if sandbox_id not in self._live:
            raise SandboxGone(f"there is no sandbox {sandbox_id}")
        return self._live[sandbox_id]

    async def close(self) -> None:
        """Safe twice. Machines end first; what they are made of goes after; then the first error is raised."""
        self._closed = True
        await asyncio.gather(*self._making, return_exceptions=True)  # they see it and give up
        live, self._live = list(self._live.values()), {}
        tasks = [*self._prepared.values(), *self._bases.values()]
        for task in tasks:
            if not task.done():
                task.cancel()
        ended = await asyncio.gather(*(sandbox.destroy() for sandbox in live), return_exceptions=True)
        ended += await asyncio.gather(*(sandbox.machine.close() for sandbox in live), return_exceptions=True)
        await asyncio.gather(*tasks, return_exceptions=True)  # whose failures their callers were told
        for source in self._sources.values():
            source.capture.close()
        for kept in self._bases.values():
            if not kept.cancelled() and kept.exception() is None:
                kept.result().close()
        self._sources.clear()
        self._prepared.clear()
        self._bases.clear()
        for error in filter(None, ended):
            raise error


async def _once(tasks: dict[K, asyncio.Task[T]], key: K, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of the one task for `key`; a failure is not remembered, a cancelled caller stops no other."""
    task = tasks.get(key)
    if task is None or (task.done() and (task.cancelled() or task.exception())):
        task = tasks[key] = asyncio.ensure_future(make())
    return await asyncio.shield(task)


def kvm_offered() -> bool:
    """Whether QEMU, as the user it will be, may open /dev/kvm; that a machine boots with it is another matter."""
    try:
        info = os.stat("/dev/kvm")
    except OSError:
        return False
    if os.geteuid() != 0:
        return os.access("/dev/kvm", os.R_OK | os.W_OK)
    mode = info.st_mode
    return bool(mode & stat.S_IROTH and mode & stat.S_IWOTH) or bool(info.st_gid and mode & stat.S_IWGRP)
