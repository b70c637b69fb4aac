"""`local/process`: plain processes in a copied folder. It isolates nothing: trusted code only.

For machines without namespaces, and for code of one's own. Commands run as this user, with this machine's files and
network in reach; the environment is built from empty, output and time are limited, and a command's process group is
killed at its end (a process that leaves its session survives: that is what "isolates nothing" means).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from composer_core.errors import NoCapacity, PathError, PrepareError, QuotaError, SandboxGone, TemplateMissing
from composer_envkit import Processes, copy, lay, remove
from composer_core.protocols import (
    BuildContext,
    Created,
    Entry,
    ExecRequest,
    ExecResult,
    Failed,
    SnapshotRef,
    TemplateRef,
    TemplateSpec,
)
from composer_core.trees import Tree
from composer_plugin_local.config import ProcessConfig
from composer_plugin_local.keeper import files

Entries = list[Entry]


def build(config: ProcessConfig, build: BuildContext) -> ProcessProvider:
    return ProcessProvider(config)


class ProcessProvider:
    """A `SandboxProvider` of folders below one temporary folder."""

    def __init__(self, config: ProcessConfig | None = None) -> None:
        self._gate = asyncio.Semaphore((config or ProcessConfig()).commands)
        self._root: Path | None = None
        self._laying = asyncio.Lock()
        self._templates: dict[str, TemplateSpec] = {}
        self._live: dict[str, ProcessSandbox] = {}

    async def probe(self) -> frozenset[str]:
        return frozenset()

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        path = search_path()
        missing = [need for need in spec.needs if not shutil.which(need, path=path)]
        if missing:
            raise PrepareError(f"commands are not installed here: {', '.join(missing)}", expected=f"on {path}")
        fields = [spec.workspace.sha256, spec.needs, spec.file_bytes, sorted(spec.env.items())]
        name = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
        async with self._laying:
            if name not in self._templates:
                self._root = self._root or Path(tempfile.mkdtemp(prefix="composer-process-"))
                await asyncio.to_thread(lay, workspace, self._root / name)
                self._templates[name] = spec
        return TemplateRef(name)

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> list[Created | Failed]:
        spec = self._templates.get(source.id)
        if spec is None or self._root is None:
            raise TemplateMissing(f"no template {source.id!r} is known here")
        return [await self._child(self._root, source.id, spec) for _ in range(n)]

    async def _child(self, root: Path, template: str, spec: TemplateSpec) -> Created | Failed:
        name = secrets.token_hex(8)
        try:
            for folder in ("tmp", "workspace"):
                (root / name / folder).mkdir(parents=True)
            await copy(root / template, root / name / "workspace")
        except OSError as error:
            await remove(root / name)
            return Failed(str(error))
        self._live[name] = ProcessSandbox(name, root / name, spec, self._gate)
        return Created(self._live[name])

    async def attach(self, sandbox_id: str) -> ProcessSandbox:
        found = self._live.get(sandbox_id)
        if found is None or found.gone:
            raise SandboxGone(f"there is no sandbox {sandbox_id}")
        return found

    async def close(self) -> None:
        """One sandbox that cannot be ended keeps no other, nor the folder; the first error is raised at the end."""
        live, self._live = self._live, {}
        self._templates.clear()
        root, self._root = self._root, None
        failed = await asyncio.gather(*(sandbox.end() for sandbox in live.values()), return_exceptions=True)
        try:
            if root is not None:
                await remove(root)
        finally:
            for error in filter(None, failed):
                raise error


class ProcessSandbox:
    """A `SandboxBackend`: a folder, and the commands that run in it."""

    def __init__(self, name: str, home: Path, spec: TemplateSpec, gate: asyncio.Semaphore) -> None:
        self.id = name
        self.gone = False
        self._home, self._spec, self._gate = home, spec, gate
        self._processes = Processes()
        self._fd = os.open(home / "workspace", os.O_PATH | os.O_DIRECTORY)

    async def exec(self, request: ExecRequest) -> ExecResult:
        cwd = self._cwd(request.cwd)
        async with self._gate:
            self._alive()
            result = await self._processes.run(request, cwd, self._env(dict(request.env)))
        self._alive()
        return result

    def _cwd(self, path: str) -> Path:
        self._alive()
        try:
            files.check_folder(self._fd, path)
        except files.Refused as error:
            raise PathError(str(error)) from error
        return self._home / "workspace" / path

    def _env(self, extra: dict[str, str]) -> dict[str, str]:
        tmp = str(self._home / "tmp")
        own = {"PATH": search_path(), "HOME": tmp, "TMPDIR": tmp, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**own, **self._spec.env, **extra}

    async def read(self, path: str, limit_bytes: int) -> bytes:
        self._alive()
        try:
            return files.read(self._fd, path, limit_bytes)[0]
        except files.Refused as error:
            raise _typed(error) from error

    async def write(self, path: str, data: bytes) -> None:
        self._alive()
        try:
            files.write(self._fd, path, data, self._spec.file_bytes)
        except files.Refused as error:
            raise _typed(error) from error

    async def list(self, path: str) -> Entries:
        self._alive()
        try:
            return [Entry(*row) for row in files.listing(self._fd, path)]
        except files.Refused as error:
            raise _typed(error) from error

    def _alive(self) -> None:
        if self.gone:
            raise SandboxGone(f"sandbox {self.id} was destroyed")

    async def destroy(self) -> None:
        await self.end()
        await remove(self._home)

    async def end(self) -> None:
        """Kill what runs; the folder stays."""
        if not self.gone:
            self.gone = True
            try:
                await self._processes.kill()
            finally:
                os.close(self._fd)


def _typed(error: files.Refused) -> PathError | QuotaError | NoCapacity:
    return QuotaError(str(error)) if error.kind == "quota" else PathError(str(error))


def search_path() -> str:
    """System folders, and this interpreter's own so that `python3` is always there."""
    return f"/usr/local/bin:/usr/bin:/bin:{sys.base_prefix}/bin"
