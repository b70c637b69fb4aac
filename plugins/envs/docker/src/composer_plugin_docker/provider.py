"""`docker/docker`: templates are images, sandboxes are containers with an agent, snapshots are what agents tell."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Awaitable

from attrs import frozen

from composer_core.errors import (
    BackendError,
    ConfigError,
    NoCapacity,
    PrepareError,
    SandboxError,
    SandboxGone,
    TemplateMissing,
)
from composer_core.protocols import (
    BuildContext,
    Created,
    ExecRequest,
    Failed,
    SnapshotRef,
    TemplateRef,
    TemplateSpec,
)
from composer_core.trees import Tree
from composer_envkit import check_workspace
from composer_plugin_docker import owners
from composer_plugin_docker.config import DockerConfig
from composer_plugin_docker.engine import FIX, Engine, Missing
from composer_plugin_docker.images import Images
from composer_plugin_docker.sandbox import DockerSandbox
from composer_plugin_docker.walls import Capture, Captured, Template

Children = list[Created | Failed]
ALWAYS = ("isolates", "forks", "snapshots.files", "changes", "sessions", "networks", "limits.file_size", "limits.disk")
LIMITS = {"limits.memory": "MemoryLimit", "limits.processes": "PidsLimit"}
"""Capability -> what the engine says of itself."""
OWN = {"HOME": "/tmp", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}


def build(config: DockerConfig, build: BuildContext) -> DockerProvider:
    return DockerProvider(config)


@frozen
class _Open:
    """What exists while a provider is connected."""

    engine: Engine
    images: Images


class DockerProvider:
    """A `SandboxProvider`; it connects with the first request, and removes then what killed runs have left."""

    def __init__(self, config: DockerConfig | None = None) -> None:
        self._config = config or DockerConfig()
        self.cpus = self._config.cpus
        self._open: _Open | None = None
        self._opening = asyncio.Lock()
        self._starts = asyncio.Semaphore(self._config.starts)
        self._preparing: dict[str, asyncio.Task[Template]] = {}
        self._snapshots: dict[str, Capture] = {}
        self._live: dict[str, DockerSandbox] = {}
        self._closed = False

    @property
    def engine(self) -> Engine:
        self._not_closed()
        assert self._open is not None
        return self._open.engine

    def _not_closed(self) -> None:
        if self._closed:
            raise SandboxGone("the provider was closed")

    async def _connected(self) -> _Open:
        async with self._opening:
            self._not_closed()
            if self._open is None:
                engine = await Engine.connect(self._config.engine, owners.this_process())
                if self._closed:
                    await asyncio.to_thread(engine.close)
                self._not_closed()
                self._open = _Open(engine, Images(engine, self._config))
                await reap(engine)
            return self._open

    async def probe(self) -> frozenset[str]:
        """Raises ConfigError when no sandbox can be made, or one that was made does not work."""
        engine = (await self._connected()).engine
        told = await engine.call(engine.api.info)
        pauses = ["pauses"] if await self._try_out() else []
        limits = [name for name, key in LIMITS.items() if told.get(key)]
        return frozenset(f"sandbox.{name}" for name in (*ALWAYS, *pauses, *limits))

    async def _try_out(self) -> bool:
        """Whether containers can be paused, which takes a control group that can be frozen."""
        tree = Tree.of({"file": "kept\n"})
        (child,) = await self.create(await self.prepare(TemplateSpec(tree.ref), tree))
        if isinstance(child, Failed):
            raise ConfigError("no container can be started here", found=child.error, fix=FIX)
        assert isinstance(child.backend, DockerSandbox)
        try:
            result = await child.backend.exec(ExecRequest(("cat", "file")))
            try:
                await child.backend.pause()
                await child.backend.resume()
                pauses = True
            except BackendError:
                pauses = False
        finally:
            await child.backend.destroy()
        if result.stdout != b"kept\n":
            found = f"{result.status} {result.exit_code}, {result.stderr.decode(errors='replace')}"
            raise ConfigError("commands cannot run in a container here", found=found, fix=FIX)
        return pauses

    # --- templates --------------------------------------------------------------------------------------------

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        self._not_closed()
        fields = [spec.workspace.sha256, spec.needs, spec.memory_bytes, spec.processes, spec.file_bytes]
        text = json.dumps([*fields, spec.disk_bytes, sorted(spec.env.items())])
        name = hashlib.sha256(text.encode()).hexdigest()
        task = self._preparing.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._preparing[name] = asyncio.ensure_future(self._prepare(spec, workspace))
        await asyncio.shield(task)
        return TemplateRef(name)

    async def _prepare(self, spec: TemplateSpec, workspace: Tree) -> Template:
        check_workspace(spec, workspace)
        images = (await self._connected()).images
        ready = await images.ready(spec.needs)
        image = await images.template(ready, workspace)
        size = sum(-(-len(file.data) // 4096) * 4096 for file in workspace.files)
        template = Template(image, ready.start, {**ready.env, **OWN, **spec.env}, spec, size)
        if spec.needs:
            await self._check(template, list(spec.needs))
        return template

    async def _check(self, template: Template, needs: list[str]) -> None:
        sandbox = await self._started(template, None)
        try:
            missing = await sandbox.missing(needs)
        finally:
            await sandbox.destroy()
        if missing:
            fix = "name an image that has them in sandbox.image"
            raise PrepareError(
                f"the image has no commands {', '.join(missing)}", expected=template.env["PATH"], fix=fix
            )

    def keep(self, capture: Capture) -> SnapshotRef:
        """Raises NoCapacity when snapshots would take more memory than they may."""
        held = sum(len(kept.data) for kept in self._snapshots.values()) + len(capture.data)
        if held > self._config.store_bytes:
            raise NoCapacity(f"snapshots would take {held} bytes, sandbox.store_bytes = {self._config.store_bytes}")
        name = f"snapshot-{secrets.token_hex(8)}"
        self._snapshots[name] = capture
        return SnapshotRef(name)

    async def release(self, ref: SnapshotRef) -> None:
        self._snapshots.pop(ref.id, None)

    # --- sandboxes --------------------------------------------------------------------------------------------

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> Children:
        self._not_closed()
        if source.id in self._snapshots:
            captured: Captured = asyncio.get_running_loop().create_future()
            captured.set_result(self._snapshots[source.id])
            return await self.children(captured.result().template, n, captured)
        task = self._preparing.get(source.id)
        if task is None or not task.done() or task.cancelled() or task.exception():
            raise TemplateMissing(f"no template or snapshot {source.id!r} is known here")
        return await self.children(task.result(), n, None)

    async def children(self, template: Template, n: int, captured: Captured | None) -> Children:
        children = [asyncio.ensure_future(self._child(template, captured)) for _ in range(n)]
        try:
            return list(await asyncio.gather(*children))
        except BaseException:  # nobody would learn of those that were made
            for child in children:
                child.cancel()
            made = await asyncio.gather(*children, return_exceptions=True)
            await _all(*(child.backend.destroy() for child in made if isinstance(child, Created)))
            raise

    async def _child(self, template: Template, captured: Captured | None) -> Created | Failed:
        try:
            return Created(await self._started(template, captured))
        except Missing as error:
            return Failed(f"the template's image was removed by somebody else: {error.message}", retryable=False)
        except SandboxError as error:
            return Failed(error.message, error.retryable)

    async def _started(self, template: Template, captured: Captured | None) -> DockerSandbox:
        sandbox = DockerSandbox(self, template)
        self._live[sandbox.id] = sandbox
        try:
            async with self._starts:
                await sandbox.start(captured)
        except BaseException:
            self._live.pop(sandbox.id, None)
            raise
        return sandbox

    async def attach(self, sandbox_id: str) -> DockerSandbox:
        if sandbox_id not in self._live:
            raise SandboxGone(f"there is no sandbox {sandbox_id} of this provider")
        return self._live[sandbox_id]

    async def forget(self, sandbox: DockerSandbox) -> None:
        self._live.pop(sandbox.id, None)
        await sandbox.end()

    async def close(self) -> None:
        """One sandbox that cannot be removed keeps no other; the first error is raised at the end."""
        self._closed = True
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        self._preparing.clear()
        self._snapshots.clear()
        live, self._live = self._live, {}
        errors = await _all(*(sandbox.end() for sandbox in live.values()))
        opened, self._open = self._open, None
        if opened is not None:
            errors += await _all(opened.images.close())
            await asyncio.to_thread(opened.engine.close)
        if errors:
            raise errors[0]


async def _all(*work: Awaitable[None]) -> list[BaseException]:
    found = await asyncio.gather(*work, return_exceptions=True)
    return [one for one in found if one is not None]


async def reap(engine: Engine) -> int:
    """Remove what belongs to processes of this machine that are no more; returns how many things that were."""
    left = [(kind, id) for kind, id, owner in await engine.owned() if owners.has_ended(owner)]
    for kind, id in left:
        await (engine.remove_container(id) if kind == "container" else engine.remove_image(id))
    return len(left)
