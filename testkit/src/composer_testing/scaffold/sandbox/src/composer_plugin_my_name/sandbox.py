"""Sandboxes that are folders: a copy of the workspace, and processes of this user in it. They isolate nothing.

Where a path leads is checked and then opened. A command that runs at the same moment could put a link in between, which
gains it nothing here; a backend that isolates has to open a path part by part instead.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from attrs import asdict

from composer_core import BuildContext, Tree
from composer_core.errors import PathError, PrepareError, QuotaError, SandboxGone, TemplateMissing
from composer_core.hosting import Processes, lay, remove
from composer_core.protocols import (
    Created,
    Entry,
    ExecRequest,
    ExecResult,
    Failed,
    SnapshotRef,
    TemplateRef,
    TemplateSpec,
)
from composer_plugin_my_name.plugin import MyNameConfig

Entries = list[Entry]
PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where commands are looked up."""


class MyNameProvider:
    """`protocols.SandboxProvider`: every sandbox is a folder below one temporary folder."""

    def __init__(self, config: MyNameConfig, build: BuildContext) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="my-name-")).resolve()
        self._templates: dict[str, tuple[TemplateSpec, Tree]] = {}
        self._live: dict[str, MyNameSandbox] = {}

    async def probe(self) -> frozenset[str]:
        """What really works here; must be all that the record declares."""
        return frozenset()

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        """Called once for each content. Equal specs have equal names, so they are one template."""
        missing = [need for need in spec.needs if not shutil.which(need, path=PATH)]
        if missing:
            raise PrepareError(f"commands are not installed: {', '.join(missing)}", expected=f"on {PATH}")
        name = repr(sorted(asdict(spec).items()))
        self._templates[name] = (spec, workspace)
        return TemplateRef(name)

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> list[Created | Failed]:
        """n sandboxes that share no file; one that cannot be made does not keep the others from being made."""
        if source.id not in self._templates:
            raise TemplateMissing(f"no template {source.id!r} is known here")
        return [await self._child(*self._templates[source.id]) for _ in range(n)]

    async def _child(self, spec: TemplateSpec, tree: Tree) -> Created | Failed:
        try:
            sandbox = MyNameSandbox(Path(tempfile.mkdtemp(dir=self._root)), spec, self._live)
            await asyncio.to_thread(lay, tree, sandbox.folder)
        except OSError as error:
            return Failed(str(error))
        return Created(sandbox)

    async def attach(self, sandbox_id: str) -> "MyNameSandbox":
        """A live sandbox by its id."""
        if sandbox_id not in self._live:
            raise SandboxGone(f"there is no sandbox {sandbox_id}")
        return self._live[sandbox_id]

    async def close(self) -> None:
        """Safe twice, and after a start that failed. One that cannot be destroyed keeps no other; the first error is
        raised at the end.
        """
        failed = await asyncio.gather(
            *(sandbox.destroy() for sandbox in list(self._live.values())), return_exceptions=True
        )
        failed += await asyncio.gather(remove(self._root), return_exceptions=True)  # fails if anything is left
        for error in filter(None, failed):
            raise error


class MyNameSandbox:
    """`protocols.SandboxBackend`; it lives as long as it stands among the live ones."""

    def __init__(self, home: Path, spec: TemplateSpec, live: "dict[str, MyNameSandbox]") -> None:
        self.id, self.folder = home.name, home / "workspace"
        self._home, self._spec, self._live, self._processes = home, spec, live, Processes()
        live[self.id] = self

    async def exec(self, request: ExecRequest) -> ExecResult:
        """A command's end, however it came, is a result; only a sandbox that is gone is an error."""
        cwd, home = self._find(request.cwd, os.path.isdir), str(self._home)
        own = {"PATH": PATH, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", **self._spec.env}
        result = await self._processes.run(request, cwd, {**own, **request.env})
        self._find("", lambda found: True)  # gone if it was destroyed meanwhile
        return result

    async def read(self, path: str, limit_bytes: int) -> bytes:
        """PathError for what is no file, QuotaError for one over the limit."""
        found = self._find(path, os.path.isfile)
        if found.stat().st_size > limit_bytes:
            raise QuotaError(f"{path!r} has {found.stat().st_size} bytes, the limit is {limit_bytes}")
        return await asyncio.to_thread(found.read_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Makes parents, replaces what was there; PathError or QuotaError as for reading."""
        target = self._find(path, lambda found: os.path.isfile(found) or not os.path.lexists(found))
        if len(data) > self._spec.file_bytes:
            raise QuotaError(f"{path!r} would have {len(data)} bytes, the limit is {self._spec.file_bytes}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(target.write_bytes, data)
        except OSError as error:
            raise PathError(f"{path!r} cannot be written: {error.strerror}") from error

    async def list(self, path: str) -> Entries:
        """Entries by name."""
        return [_entry(found) for found in sorted(self._find(path, os.path.isdir).iterdir())]

    async def destroy(self) -> None:
        """Safe twice; commands that still run are killed, and their callers told that the sandbox is gone."""
        self._live.pop(self.id, None)
        await self._processes.kill()
        await remove(self._home)

    def _find(self, path: str, fits: Callable[[Path], bool]) -> Path:
        """Where `path` really is, links followed; PathError unless that is in the workspace and `fits`."""
        if self.id not in self._live:
            raise SandboxGone(f"sandbox {self.id} was destroyed")
        found = Path(os.path.realpath(self.folder / path))
        if not found.is_relative_to(self.folder) or not fits(found):
            raise PathError(f"{path!r} is no such file or folder of the workspace")
        return found


def _entry(path: Path) -> Entry:
    """Links, names that are no UTF-8, and what is out of reach (its path too long) are "other": in no patch."""
    name = path.name.encode(errors="backslashreplace").decode()
    if name != path.name or os.path.islink(path) or not (os.path.isdir(path) or os.path.isfile(path)):
        return Entry(name, "other")
    return Entry(name, "folder") if os.path.isdir(path) else Entry(name, "file", path.stat().st_size)
