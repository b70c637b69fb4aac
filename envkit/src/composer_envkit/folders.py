"""A sandbox backend on folders of this machine, whole but for its walls.

A template, a snapshot and a sandbox are the same thing, a folder; to create, to capture and to fork is to copy. Not by
hard links: a command may write into a file in place, and every copy would change with it.

Files are read and written from outside, where a path is looked up and then opened. A command that runs at that moment
could put a link in between and so reach a file of the host; so in one sandbox commands and file operations take turns.
That is enough where nothing of a command outlives it, as in a pid namespace; a backend in which something does has to
open paths part by part instead, or isolates nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path

from composer_core.errors import PathError, PrepareError, QuotaError
from composer_core.protocols import Created, Entry, ExecRequest, ExecResult, Failed, SnapshotRef, TemplateSpec
from composer_core.trees import Tree
from composer_envkit.processes import Processes
from composer_envkit.providers import Provider, ended
from composer_envkit.workspaces import copy, lay, remove

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
        await asyncio.to_thread(lay, workspace, folder)
        return folder

    async def start(self, spec: TemplateSpec, state: Path) -> FolderSandbox:
        sandbox = self.sandbox(self, spec, self.folder())
        sandbox.folder.mkdir()
        await copied(state, sandbox.folder, sandbox.home)
        return sandbox

    async def probe(self) -> frozenset[str]:
        return frozenset({"sandbox.forks", "sandbox.snapshots.files"})

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
        """Run a command in a folder of the workspace; no file of it is touched from outside meanwhile."""
        return await self.processes.run(request, cwd, self.environment(request))

    def environment(self, request: ExecRequest) -> dict[str, str]:
        """All variables a command gets: built from empty, the template's and then the request's on top."""
        home = self.home_inside
        own = {"PATH": self.provider.path, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
        return {**own, **self.spec.env, **request.env}

    async def exec(self, request: ExecRequest) -> ExecResult:
        async with self._turn:
            result = await self.run(request, await self._find(request.cwd, folder=True))
        await self.provider.attach(self.id)  # SandboxGone if it was destroyed meanwhile
        return result

    async def read(self, path: str, limit_bytes: int) -> bytes:
        async with self._using(path) as file:
            if file.is_file() and file.stat().st_size > limit_bytes:
                raise QuotaError(f"{path!r} has {file.stat().st_size} bytes, the limit is {limit_bytes}")
            return await asyncio.to_thread(file.read_bytes)

    async def write(self, path: str, data: bytes) -> None:
        if len(data) > self.spec.file_bytes:
            raise QuotaError(f"{path!r} would have {len(data)} bytes, the limit is {self.spec.file_bytes}")
        async with self._using(path) as file:
            file.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(file.write_bytes, data)

    async def list(self, path: str) -> Entries:
        async with self._using(path, folder=True) as folder:
            return [entry(found) for found in sorted(folder.iterdir())]

    async def snapshot(self) -> SnapshotRef:
        """A copy that `create` starts from, until the provider is closed."""
        folder = self.provider.folder()
        async with self._using("", folder=True) as found:
            await copied(found, folder, folder)
        self.provider.sources[folder.name] = self.spec, folder
        return SnapshotRef(folder.name)

    async def fork(self, n: int) -> Children:
        """The children are copies of one snapshot, which goes when they stand."""
        state = await self.snapshot()
        try:
            return await self.provider.create(state, n)
        finally:
            del self.provider.sources[state.id]
            await remove(self.provider.root / state.id)

    async def destroy(self) -> None:
        """Safe twice; commands that still run are killed, and their callers told that the sandbox is gone."""
        self.provider.live.pop(self.id, None)
        await self.processes.kill()
        await remove(self.home)

    @asynccontextmanager
    async def _using(self, path: str, folder: bool = False) -> AsyncIterator[Path]:
        """Where `path` really is, while nobody else uses the sandbox; what the system refuses is a PathError."""
        async with self._turn:
            found = await self._find(path, folder)
            try:
                yield found
            except OSError as error:
                raise PathError(f"{path!r}: {error.strerror or error}") from error

    async def _find(self, path: str, folder: bool) -> Path:
        await self.provider.attach(self.id)
        try:
            found = (self.folder / path).resolve()
            fits = found.is_relative_to(self.folder) and not (found.is_fifo() or found.is_socket())
            fits = fits and (found.is_dir() or not folder)
        except (OSError, ValueError, RuntimeError) as error:  # its name too long, a null in it, links in a circle
            raise PathError(f"{path!r}: {error}") from error
        if not fits:
            raise PathError(f"{path!r} is no such file or folder of the workspace")
        return found


async def copied(source: Path, target: Path, home: Path) -> None:
    """Copy, or leave nothing of `home`."""
    try:
        await copy(source, target)
    except OSError:
        await remove(home)
        raise


def entry(path: Path) -> Entry:
    """Links, names that are no UTF-8, and what is out of reach (its path too long) are "other": in no patch."""
    name = path.name.encode(errors="backslashreplace").decode()
    if name != path.name or os.path.islink(path) or not (os.path.isdir(path) or os.path.isfile(path)):
        return Entry(name, "other")
    return Entry(name, "folder") if os.path.isdir(path) else Entry(name, "file", path.stat().st_size)
