"""A sandbox backend on folders of this machine, whole but for its walls.

A template, a snapshot and a sandbox are the same thing, a folder; to create, to capture and to fork is to copy. Not by
hard links: a command may write into a file in place, and every copy would change with it.

Files are read and written from outside, by `agent.files`, where the kernel lets no link and no race lead out of the
workspace. Copies have no such help, so in one sandbox commands and copies take turns: what a command starts must end
with it, or it could exchange a folder for a link while a snapshot is taken. Needs Linux 5.6.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from composer_core.errors import BackendError, PathError, PrepareError, QuotaError, TemplateMissing
from composer_core.protocols import Created, Entry, ExecRequest, ExecResult, Failed, SnapshotRef, TemplateSpec
from composer_core.trees import Tree
from composer_envkit.agent import files
from composer_envkit.processes import Processes
from composer_envkit.providers import Provider, ended
from composer_envkit.workspaces import copy, in_thread, lay, remove

P = ParamSpec("P")
R = TypeVar("R")
Entries = list[Entry]
Children = list[Created | Failed]


class FolderProvider(Provider):
    """A provider of `sandbox`, a subclass of `FolderSandbox`; all its folders are below one temporary folder, `root`.

    `path` is where commands are looked up, on this machine.
    """

    def __init__(self, sandbox: type[FolderSandbox], path: str = "/usr/local/bin:/usr/bin:/bin") -> None:
        super().__init__()
        self.sandbox, self.path = sandbox, path

    @cached_property
    def root(self) -> Path:
        """Made when it is first needed, and removed by `close`."""
        return Path(tempfile.mkdtemp(prefix="composer-")).resolve()

    def folder(self) -> Path:
        """A new folder, whose name is an id that nothing had before."""
        return Path(tempfile.mkdtemp(dir=self.root))

    async def template(self, spec: TemplateSpec, workspace: Tree) -> Path:
        missing = [need for need in spec.needs if not shutil.which(need, path=self.path)]
        if missing:
            raise PrepareError(f"commands are not installed: {', '.join(missing)}", expected=f"on {self.path}")
        folder = self.folder()
        try:
            await in_thread(lay, workspace, folder)
        except BaseException:
            await remove(folder)
            raise
        return folder

    async def start(self, spec: TemplateSpec, state: Path) -> FolderSandbox:
        sandbox = self.sandbox(self, spec, self.folder())
        sandbox.folder.mkdir()
        await copied(state, sandbox.folder, sandbox.home)
        if not state.is_dir():
            await remove(sandbox.home)
            raise TemplateMissing("its snapshot was released while it was copied")
        return sandbox

    async def probe(self) -> frozenset[str]:
        return frozenset({"sandbox.forks", "sandbox.snapshots.files"})

    async def release(self, ref: SnapshotRef) -> None:
        if ref.id in self.sources:
            await super().release(ref)
            gone = self.folder()
            (self.root / ref.id).rename(gone)  # before any file of it goes: whoever copies it sees all of it, or that
            await remove(gone)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if "root" in vars(self):
                await ended([remove(self.root)])


class FolderSandbox:
    """A `protocols.SandboxBackend` with `Forks`; it lives as long as its provider holds it.

    `run` is what a subclass replaces: this one's commands are processes of this user, with nothing around them.
    """

    provider: FolderProvider
    """Whose sandbox this is; a subclass of the provider holds the settings."""
    spec: TemplateSpec
    """What its template was made of: limits, variables."""
    home: Path
    """A folder that is the sandbox's own; its name is the sandbox's id."""
    folder: Path
    """The workspace, `home/workspace`."""
    home_inside: str
    """What HOME and TMPDIR are for commands: `home`, unless a subclass knows a better one."""
    processes: Processes
    """The commands that run; `destroy` ends them."""

    def __init__(self, provider: FolderProvider, spec: TemplateSpec, home: Path) -> None:
        self.id, self.provider, self.spec, self.home = home.name, provider, spec, home
        self.folder, self.home_inside = home / "workspace", str(home)
        self.processes, self._turn = Processes(), asyncio.Lock()

    async def run(self, request: ExecRequest, cwd: Path) -> ExecResult:
        """Run a command in a folder of the workspace; nobody copies the workspace meanwhile."""
        return await self.processes.run(request, cwd, self.environment(request))

    def environment(self, request: ExecRequest) -> dict[str, str]:
        """All variables a command gets: built from empty, the template's and then the request's on top."""
        home = self.home_inside
        own = {"PATH": self.provider.path, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
        return {**own, **self.spec.env, **request.env}

    async def exec(self, request: ExecRequest) -> ExecResult:
        async with self._turn:
            await self._files(_is_folder, request.cwd)
            result = await self.run(request, self.folder / request.cwd)
        await self.provider.attach(self.id)  # SandboxGone if it was destroyed meanwhile
        return result

    async def read(self, path: str, limit_bytes: int) -> bytes:
        data, _ = await self._files(files.read, path, limit_bytes)
        return data

    async def write(self, path: str, data: bytes) -> None:
        await self._files(files.write, path, data, self.spec.file_bytes)

    async def list(self, path: str) -> Entries:
        return [Entry(*row) for row in await self._files(files.listing, path)]

    async def _files(self, act: Callable[Concatenate[int, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do something below the workspace's descriptor, in a thread, since a folder may hold many files."""
        await self.provider.attach(self.id)

        def below() -> R:
            fd = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
            try:
                return act(fd, *args, **kwargs)
            finally:
                os.close(fd)

        try:
            return await in_thread(below)
        except files.Refused as error:
            raise (QuotaError if error.kind == "quota" else PathError)(str(error)) from error
        except (OSError, ValueError) as error:  # a null in it
            await self.provider.attach(self.id)
            raise PathError(str(error)) from error

    async def snapshot(self) -> SnapshotRef:
        """A copy that `create` starts from, until the provider releases it or is closed."""
        async with self._turn:
            await self.provider.attach(self.id)
            folder = self.provider.folder()
            try:
                await copied(self.folder, folder, folder)
            except OSError as error:
                raise BackendError("the workspace cannot be copied", found=str(error)) from error
        self.provider.sources[folder.name] = self.spec, folder
        return SnapshotRef(folder.name)

    async def fork(self, n: int) -> Children:
        """The children are copies of one snapshot, which goes when they stand."""
        state = await self.snapshot()
        try:
            return await self.provider.create(state, n)
        finally:
            await self.provider.release(state)

    async def destroy(self) -> None:
        """Safe twice; commands that still run are killed, and their callers told that the sandbox is gone."""
        self.provider.live.pop(self.id, None)
        await self.processes.kill()
        await remove(self.home)


def _is_folder(below: int, path: str) -> None:
    os.close(files.open_folder(below, path))


async def copied(source: Path, target: Path, home: Path) -> None:
    """Copy, or leave nothing of `home`."""
    try:
        await copy(source, target)
    except BaseException:
        await remove(home)
        raise
