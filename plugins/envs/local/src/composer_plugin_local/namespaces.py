"""`local/namespaces`: bubblewrap over an overlay, through one keeper process per provider."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from composer_core.errors import BackendError, ConfigError, PrepareError, SandboxGone, SandboxUnreachable
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
from composer_core.trees import File, Patch, Tree
from composer_envkit import check_workspace
from composer_plugin_local.client import FIX, Keeper
from composer_plugin_local.config import NamespacesConfig
from composer_plugin_local.keeper import wire

Children = list[Created | Failed]
Entries = list[Entry]
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
"""Where commands are looked for; these folders are shown to every sandbox, read-only."""


def build(config: NamespacesConfig, build: BuildContext) -> NamespacesProvider:
    return NamespacesProvider(config)


class NamespacesProvider:
    """A `SandboxProvider`; its keeper starts with the first request."""

    def __init__(self, config: NamespacesConfig | None = None, packages: Iterable[str] | None = None) -> None:
        """`packages` are the folders that plugins were imported from; default, those of this process."""
        self._config = config or NamespacesConfig()
        self._keeper: Keeper | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._prepared: dict[str, asyncio.Task[None]] = {}
        self._tools = outside_tools()
        self._hidden = hidden_folders(self._tools, package_folders() if packages is None else packages)

    async def probe(self) -> frozenset[str]:
        await self._try_out()
        names = ("isolates", "forks", "snapshots.files", "changes", "sessions", "pauses", "networks")
        limits = ["processes", "file_size", "disk"]
        if self._keeper is not None and self._keeper.counts_memory:  # else each process alone is limited, not all
            limits.append("memory")
        return frozenset([*(f"sandbox.{name}" for name in names), *(f"sandbox.limits.{name}" for name in limits)])

    async def _try_out(self) -> None:
        """Run one command that needs namespaces, limits, and an overlay that can replace a folder."""
        tree = Tree.of({"folder/file": ""})
        (child,) = await self.create(await self.prepare(TemplateSpec(tree.ref), tree))
        if isinstance(child, Failed):
            raise ConfigError("no sandbox can be mounted here", found=child.error, fix=FIX)
        request = ExecRequest(("sh", "-c", "rm -r folder && mkdir folder && test ! -e folder/file"))
        try:
            result = await child.backend.exec(request)
            found = result.stderr.decode(errors="replace") if result.exit_code != 0 else None
        except BackendError as error:
            found = error.message
        finally:
            await child.backend.destroy()
        if found is not None:
            raise ConfigError("commands cannot run in a sandbox here", found=found, expected="Linux 6.6+", fix=FIX)

    async def _started(self) -> Keeper:
        async with self._starting:
            self._open()
            if self._keeper is None:
                config = self._config
                settings = {"bwrap": find_bwrap(config.bwrap), "tools": self._tools, "commands": config.commands}
                settings["hidden"] = self._hidden
                settings |= {"store_bytes": config.store_bytes, "cgroups": config.cgroups}
                keeper = await Keeper.start(settings)
                if self._closed:
                    await keeper.close()
                self._open()
                self._keeper = keeper
            return self._keeper

    def _open(self) -> None:
        if self._closed:
            raise SandboxGone("the provider was closed")

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        missing = [need for need in spec.needs if need not in self._tools and not shutil.which(need, path=SYSTEM)]
        if missing:
            fix = f"apt install {' '.join({'rg': 'ripgrep'}.get(name, name) for name in missing)}"
            raise PrepareError(f"commands are not installed here: {', '.join(missing)}", fix=fix)
        fields = _limits(spec) | {"tools": [name for name in spec.needs if name in self._tools]}
        template = hashlib.sha256(json.dumps([spec.workspace.sha256, fields], sort_keys=True).encode()).hexdigest()
        task = self._prepared.get(template)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.create_task(self._send(template, fields, spec, workspace))
            self._prepared[template] = task
        await asyncio.shield(task)
        return TemplateRef(template)

    async def _send(self, template: str, fields: dict[str, Any], spec: TemplateSpec, workspace: Tree) -> None:
        check_workspace(spec, workspace)
        keeper = await self._started()
        rows, data = wire.pack_files([(file.path, file.data, file.executable) for file in workspace.files])
        await keeper.ask("prepare", data, id=template, files=rows, spec=fields)

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> list[Created | Failed]:
        keeper = await self._started()
        return _children(keeper, await keeper.make("create", source=source.id, count=n))

    async def release(self, ref: SnapshotRef) -> None:
        if self._keeper is not None:
            await self._keeper.ask("release", id=ref.id)

    async def attach(self, sandbox_id: str) -> NamespacesSandbox:
        keeper = await self._started()
        await keeper.ask("attach", id=sandbox_id)
        return NamespacesSandbox(keeper, sandbox_id)

    async def close(self) -> None:
        """Safe twice. What is being prepared is given up first, since it may be starting a keeper."""
        self._closed = True
        preparing, self._prepared = list(self._prepared.values()), {}
        for task in preparing:
            task.cancel()
        await asyncio.gather(*preparing, return_exceptions=True)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.close()


class NamespacesSandbox:
    """A `SandboxBackend` with all optional methods but of memory and leases; holds nothing but the sandbox's id."""

    def __init__(self, keeper: Keeper, sandbox_id: str) -> None:
        self.id = sandbox_id
        self._keeper = keeper

    async def exec(self, request: ExecRequest) -> ExecResult:
        return await self._run("exec", request, request.stdin, cwd=request.cwd)

    async def session_exec(self, name: str, request: ExecRequest) -> ExecResult:
        return await self._run("session", request, name=name, cwd="")

    async def _run(self, op: str, request: ExecRequest, stdin: bytes = b"", **more: str) -> ExecResult:
        way_out = self._keeper.networks.get(self.id)
        env = {**(way_out.variables if way_out else {}), **request.env}
        fields = {"argv": request.argv, "env": env, **more}
        limits = {"timeout_s": request.timeout_s, "output_bytes": request.output_bytes}
        header, body = await self._keeper.ask(op, stdin, id=self.id, **fields, **limits)
        split = header.pop("split")
        del header["n"]
        return ExecResult(stdout=body[:split], stderr=body[split:], **header)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        return (await self._keeper.ask("read", id=self.id, path=path, limit=limit_bytes))[1]

    async def write(self, path: str, data: bytes) -> None:
        await self._keeper.ask("write", data, id=self.id, path=path)

    async def list(self, path: str) -> Entries:
        header, _ = await self._keeper.ask("list", id=self.id, path=path)
        return [Entry(*row) for row in header["entries"]]

    async def pause(self) -> None:
        await self._keeper.ask("pause", id=self.id)

    async def resume(self) -> None:
        await self._keeper.ask("resume", id=self.id)

    async def set_network(self, allow: Sequence[str]) -> None:
        await self._keeper.ask("attach", id=self.id)
        await self._keeper.network(self.id).allow(allow)

    async def destroy(self) -> None:
        with suppress(SandboxUnreachable):  # a keeper that is gone took its sandboxes along
            await self._keeper.ask("destroy", id=self.id)
        await self._keeper.leave_network(self.id)

    async def snapshot(self) -> SnapshotRef:
        return SnapshotRef(await self._keeper.snapshot(self.id))

    async def fork(self, n: int) -> Children:
        return _children(self._keeper, await self._keeper.make("fork", id=self.id, count=n))

    async def changes(self, limit_bytes: int) -> Patch:
        header, body = await self._keeper.ask("changes", id=self.id, limit=limit_bytes)
        writes = tuple(File(*row) for row in wire.unpack_files(header["writes"], body))
        return Patch(writes, tuple(header["deletes"]), tuple(header["skipped"]))


def _children(keeper: Keeper, rows: list[dict[str, str]]) -> list[Created | Failed]:
    return [Created(NamespacesSandbox(keeper, row["id"])) if "id" in row else Failed(row["error"]) for row in rows]


def _limits(spec: TemplateSpec) -> dict[str, Any]:
    names = ("memory_bytes", "processes", "file_bytes", "disk_bytes")
    return {name: getattr(spec, name) for name in names} | {"env": dict(spec.env)}


def find_bwrap(name: str) -> str:
    """Path of a bubblewrap that works; raises ConfigError with what to install."""
    path = shutil.which(name)
    if path is None:
        raise ConfigError("local/namespaces needs bubblewrap", expected=f"the command {name!r}", fix=FIX)
    text = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=10, check=False).stdout
    if "--disable-userns" not in text:
        raise ConfigError("this bubblewrap is too old", expected="0.8 or newer", found=path, fix=FIX)
    return path


def package_folders() -> list[str]:
    """Where this process imports installed packages from."""
    return [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]


def hidden_folders(tools: Mapping[str, str], packages: Iterable[str]) -> list[str]:
    """Those of `packages` that a sandbox would see, by the path it would see them under.

    A plugin's own folder may hold what must not be read, such as the answers of its tasks. Nothing is lost where the
    run has a virtual environment of its own, which no sandbox sees anyway.
    """
    mounts = {"/usr": "/usr"} | {os.path.realpath(folder): f"/opt/{name}" for name, folder in tools.items()}
    found = []
    for folder in map(os.path.realpath, packages):
        for root, seen in mounts.items():
            if folder.startswith(f"{root}/") and os.path.isdir(folder):
                found.append(seen + folder.removeprefix(root))
    return found


def outside_tools() -> dict[str, str]:
    """Tools that are here but in no system folder: name -> a folder whose `bin` holds the command, or the command."""
    tools = {}
    if not shutil.which("python3", path=SYSTEM) and os.path.exists(f"{sys.base_prefix}/bin/python3"):
        tools["python3"] = sys.base_prefix
    ripgrep = shutil.which("rg")
    if ripgrep and not shutil.which("rg", path=SYSTEM):
        tools["rg"] = os.path.dirname(os.path.dirname(os.path.realpath(ripgrep)))
    ruff = shutil.which("ruff", path=os.path.dirname(sys.executable))
    if ruff and not shutil.which("ruff", path=SYSTEM):
        tools["ruff"] = os.path.realpath(ruff)  # the program alone: beside it lies all that this process imports
    return tools
