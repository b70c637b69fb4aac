"""What every suite of sandboxes stands on: `SandboxSuite`, one provider and one event loop for all tests of a class.

A provider may connect to an engine, import an image or boot a machine before its first sandbox is there. So the tests
of a class share one, and each has a sandbox of its own; what a test makes is destroyed at its end, and closing the
provider after the last must leave nothing. A test that changes the provider itself asks for one of its own (`fresh`);
after a test that failed the next one gets a new one.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from composer_core.errors import PluginFault
from composer_core.protocols import (
    BuildContext,
    Created,
    Failed,
    SandboxBackend,
    SandboxProvider,
    SnapshotRef,
    TemplateRef,
    TemplateSpec,
)
from composer_core.records import SandboxSpec, resolve
from composer_core.sandbox import CallLimits, Sandbox
from composer_core.trees import Tree
from composer_testing.sandbox_claims import SPEC, TREE

Act = Callable[[Sandbox, SandboxProvider], Awaitable[Any]]
Children = list[Created | Failed]


class SandboxSuite:
    """Base of the suites; `act` runs a test's coroutine in a sandbox."""

    spec: ClassVar[SandboxSpec]
    """The record that your hook yields."""
    config: ClassVar[Any] = None
    """The provider's settings; those of the record by default."""
    may_lack: ClassVar[Collection[str]] = ()
    """Capabilities that the record declares and not every machine has (control groups, KVM): tried where `probe` finds
    them."""
    longest_s: ClassVar[float] = 60.0
    """Time for one test; one that takes longer fails."""
    _shared: ClassVar[_Shared | None] = None
    _class: pytest.Item | pytest.Collector | None = None

    def provider(self, tmp_path: Path) -> SandboxProvider:
        """Built as a run builds it; it is started inside an event loop."""
        build: Callable[..., SandboxProvider] = resolve(self.spec.factory)
        return build(self.config or self.spec.config(), BuildContext(tmp_path))

    @pytest.fixture(autouse=True)
    def _of_class(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self._tmp_path = tmp_path
        self._class = request.node.getparent(pytest.Class)

    def act(self, act: Act, limits: CallLimits | None = None, *, fresh: bool = False) -> Any:
        """Run `act(sandbox, provider)` in one sandbox of `TREE`."""

        async def whole(provider: SandboxProvider) -> Any:
            return await act(await new_sandbox(provider, limits), provider)

        return self.use(whole, fresh=fresh)

    def use(self, act: Callable[[SandboxProvider], Awaitable[Any]], *, fresh: bool = False) -> Any:
        """Run `act(provider)`; what it makes is destroyed at its end, and a fresh provider is closed."""
        if fresh or self._class is None:
            with temporary_folder(new=self._class is not None):
                one = _Shared(self.provider(self._tmp_path))
                try:
                    return one.run(act, self.longest_s)
                finally:
                    one.close()
        kind = type(self)
        if kind.__dict__.get("_shared") is None:
            kind._shared = self._started(kind)
        assert kind._shared is not None
        with kind._shared.folder():
            try:
                return kind._shared.run(act, self.longest_s)
            except BaseException:
                shared, kind._shared = kind._shared, None
                shared.close()
                raise

    def _started(self, kind: type[SandboxSuite]) -> _Shared:
        made = tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True)

        def end() -> None:
            shared, kind._shared = kind._shared, None
            with made:
                if shared is not None:
                    with shared.folder():
                        shared.close()

        assert self._class is not None
        self._class.addfinalizer(end)  # runs before the fixtures of the class end, since they began earlier
        with patched_folder(made.name):
            return _Shared(self.provider(self._tmp_path), made.name)


class _Shared:
    """A provider with its event loop, and the folder for temporary files that it was made under."""

    def __init__(self, provider: SandboxProvider, temporary: str = "") -> None:
        self._provider = provider
        self._runner = asyncio.Runner()
        self._temporary = temporary

    def folder(self) -> Any:
        return patched_folder(self._temporary)

    def run(self, act: Callable[[SandboxProvider], Awaitable[Any]], longest_s: float) -> Any:
        async def whole() -> Any:
            recorder = Recorder(self._provider)
            with recorder.watching_forks():
                try:
                    return await asyncio.wait_for(act(recorder), longest_s)
                finally:
                    await recorder.destroy()

        return self._runner.run(whole())

    def close(self) -> None:
        """Safe in the provider means twice; what is left is said."""
        try:
            self._runner.run(self._closed())
        finally:
            self._runner.close()

    async def _closed(self) -> None:
        await self._provider.close()
        left = os.listdir(tempfile.gettempdir())
        await self._provider.close()
        assert not left, f"close() left {left} in the folder for temporary files"


class Recorder:
    """A `SandboxProvider` that remembers what it made, to destroy it."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self._made: list[SandboxBackend] = []
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        """What a provider may have beside."""
        return getattr(self._provider, name)

    async def probe(self) -> frozenset[str]:
        return await self._provider.probe()

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        return await self._provider.prepare(spec, workspace)

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> Children:
        children = await self._provider.create(source, n)
        self._made += [child.backend for child in children if isinstance(child, Created)]
        return children

    async def attach(self, sandbox_id: str) -> SandboxBackend:
        return await self._provider.attach(sandbox_id)

    async def close(self) -> None:
        self._closed = True
        await self._provider.close()

    @contextmanager
    def watching_forks(self) -> Iterator[None]:
        fork = Sandbox.fork

        async def watched(sandbox: Sandbox, n: int) -> list[Sandbox | Failed]:
            children = await fork(sandbox, n)
            self._made += [child.backend for child in children if isinstance(child, Sandbox)]
            return children

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Sandbox, "fork", watched)
            yield

    async def destroy(self) -> None:
        """Everything, also what is gone already; a closed provider has done so."""
        if not self._closed:
            made, self._made = self._made, []
            await asyncio.gather(*(backend.destroy() for backend in made))


@contextmanager
def patched_folder(folder: str) -> Iterator[None]:
    """Temporary files go there."""
    with pytest.MonkeyPatch.context() as patched:
        if folder:
            patched.setattr(tempfile, "tempdir", folder)
        yield


@contextmanager
def temporary_folder(new: bool) -> Iterator[None]:
    """A new folder for temporary files, or the one that there is."""
    if not new:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True) as folder, patched_folder(folder):
        yield


async def new_sandbox(provider: SandboxProvider, limits: CallLimits | None = None) -> Sandbox:
    """A sandbox of `TREE`; raises PluginFault if there is none."""
    (child,) = await provider.create(await provider.prepare(SPEC, TREE))
    if not isinstance(child, Created):
        raise PluginFault(child.error, kind="sandboxes", plugin="under test")
    return Sandbox(child.backend, "under/test", TREE, limits)
