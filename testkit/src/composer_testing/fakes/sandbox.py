"""Sandboxes in memory: a workspace is a dictionary, a command a Python function. No process, no disk.

Commands beyond the built-in true, false, echo, cat, rm and chmod are given as functions
`(files, argv, stdin) -> ExecResult` that may change `files`. Forks, file snapshots and changes are supported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable

from attrs import evolve

from composer_core.errors import PathError, PrepareError, QuotaError, SandboxGone, TemplateMissing
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
from composer_core.trees import File, Patch, Tree

Files = dict[str, bytes]
Command = Callable[[Files, Sequence[str], bytes], ExecResult | Awaitable[ExecResult]]
Children = list[Created | Failed]
Entries = list[Entry]


class MemoryProvider:
    """A `SandboxProvider`; `failures` is how many of the next creations fail, to test what retries."""

    def __init__(self, commands: Mapping[str, Command] | None = None) -> None:
        self.commands = {**BUILT_IN, **(commands or {})}
        self.prepared = 0
        self.failures = 0
        self.live: dict[str, MemorySandbox] = {}
        self._states: dict[str, tuple[TemplateSpec, Tree, Files, frozenset[str]]] = {}
        self._count = 0

    async def probe(self) -> frozenset[str]:
        return frozenset({"sandbox.forks", "sandbox.snapshots.files", "sandbox.changes"})

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        missing = [need for need in spec.needs if need not in self.commands and need not in OFFERED]
        if missing:
            raise PrepareError(f"commands are not scripted: {', '.join(missing)}")
        fields = [spec.workspace.sha256, spec.needs, spec.file_bytes, sorted(spec.env.items())]
        name = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
        if name not in self._states:
            self.prepared += 1
            modes = frozenset(file.path for file in workspace.files if file.executable)
            self._states[name] = (spec, workspace, {file.path: file.data for file in workspace.files}, modes)
        return TemplateRef(name)

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> Children:
        if source.id not in self._states:
            raise TemplateMissing(f"no template or snapshot {source.id!r} is known here")
        return [self._child(*self._states[source.id]) for _ in range(n)]

    def _child(self, spec: TemplateSpec, pristine: Tree, files: Files, modes: frozenset[str]) -> Created | Failed:
        if self.failures:
            self.failures -= 1
            return Failed("a failure that the test asked for")
        sandbox = MemorySandbox(self, self._name("sandbox"), spec, pristine, dict(files), set(modes))
        self.live[sandbox.id] = sandbox
        return Created(sandbox)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def capture(self, sandbox: MemorySandbox) -> SnapshotRef:
        name = self._name("snapshot")
        self._states[name] = (sandbox.spec, sandbox.pristine, dict(sandbox.files), frozenset(sandbox.executable))
        return SnapshotRef(name)

    async def attach(self, sandbox_id: str) -> MemorySandbox:
        if sandbox_id not in self.live:
            raise SandboxGone(f"there is no sandbox {sandbox_id}")
        return self.live[sandbox_id]

    async def close(self) -> None:
        self.live.clear()
        self._states.clear()


class MemorySandbox:
    """A `SandboxBackend` with Forks and Changes."""

    def __init__(
        self, provider: MemoryProvider, name: str, spec: TemplateSpec, pristine: Tree, files: Files, modes: set[str]
    ) -> None:
        self.id = name
        self.provider, self.spec, self.pristine = provider, spec, pristine
        self.files, self.executable = files, modes

    async def exec(self, request: ExecRequest) -> ExecResult:
        self._alive()
        command = self.provider.commands.get(request.argv[0])
        if command is None:
            return _exited(127, stderr=f"{request.argv[0]}: not found\n".encode())
        if request.argv[0] == "chmod":
            self.executable.update(request.argv[3:])
        result = command(self.files, request.argv, request.stdin)
        result = await result if isawaitable(result) else result
        cap = request.output_bytes
        return evolve(
            result,
            stdout=result.stdout[:cap],
            stderr=result.stderr[:cap],
            stdout_bytes=len(result.stdout),
            stderr_bytes=len(result.stderr),
        )

    async def read(self, path: str, limit_bytes: int) -> bytes:
        self._alive()
        name = clean(path)
        if name not in self.files:
            raise PathError(f"{path!r}: {'it is a folder' if self._is_folder(name) else 'there is no such path'}")
        if len(self.files[name]) > limit_bytes:
            raise QuotaError(f"{path!r}: {len(self.files[name])} bytes, the limit is {limit_bytes}")
        return self.files[name]

    async def write(self, path: str, data: bytes) -> None:
        self._alive()
        name = clean(path)
        parts = name.split("/")
        if self._is_folder(name) or any("/".join(parts[:end]) in self.files for end in range(1, len(parts))):
            raise PathError(f"{path!r}: it is a folder, or a part of it is a file")
        if len(data) > self.spec.file_bytes:
            raise QuotaError(f"{path!r}: {len(data)} bytes, the limit is {self.spec.file_bytes}")
        self.files[name] = data

    async def list(self, path: str) -> Entries:
        self._alive()
        name = clean(path)
        if not self._is_folder(name):
            raise PathError(f"{path!r}: there is no such folder")
        prefix = f"{name}/" if name else ""
        found: dict[str, Entry] = {}
        for file, data in self.files.items():
            if file.startswith(prefix):
                head, _, rest = file[len(prefix) :].partition("/")
                found[head] = Entry(head, "folder") if rest else Entry(head, "file", len(data))
        return [found[key] for key in sorted(found)]

    def _is_folder(self, name: str) -> bool:
        return not name or any(file.startswith(f"{name}/") for file in self.files)

    def _alive(self) -> None:
        if self.id not in self.provider.live:
            raise SandboxGone(f"sandbox {self.id} was destroyed")

    async def destroy(self) -> None:
        self.provider.live.pop(self.id, None)

    async def snapshot(self) -> SnapshotRef:
        self._alive()
        return self.provider.capture(self)

    async def fork(self, n: int) -> Children:
        self._alive()
        return await self.provider.create(self.provider.capture(self), n)

    async def changes(self, limit_bytes: int) -> Patch:
        self._alive()
        after = Tree(tuple(File(path, data, path in self.executable) for path, data in self.files.items()))
        patch = Patch.between(self.pristine, after)
        large = tuple(sorted(file.path for file in patch.writes if len(file.data) > limit_bytes))
        return Patch(tuple(file for file in patch.writes if file.path not in large), patch.deletes, large)


def clean(path: str) -> str:
    """A relative path without empty or "." parts; raises PathError when it leads out."""
    if path.startswith("/") or "\0" in path:
        raise PathError(f"{path!r}: paths are relative to the workspace")
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise PathError(f"{path!r}: the path leads out of the workspace")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _exited(code: int, stdout: bytes = b"", stderr: bytes = b"") -> ExecResult:
    return ExecResult("exited", code, stdout, stderr)


def _cat(files: Files, argv: Sequence[str], stdin: bytes) -> ExecResult:
    missing = [name for name in argv[1:] if name not in files]
    if missing:
        return _exited(1, stderr=f"cat: {missing[0]}: No such file or directory\n".encode())
    return _exited(0, b"".join(files[name] for name in argv[1:]) if argv[1:] else stdin)


def _remove(files: Files, argv: Sequence[str], stdin: bytes) -> ExecResult:
    for name in argv[1:]:
        for path in [path for path in files if path == name or path.startswith(f"{name}/")]:
            del files[path]
    return _exited(0)


BUILT_IN: Mapping[str, Command] = {
    "true": lambda files, argv, stdin: _exited(0),
    "false": lambda files, argv, stdin: _exited(1),
    "echo": lambda files, argv, stdin: _exited(0, " ".join(argv[1:]).encode() + b"\n"),
    "cat": _cat,
    "rm": _remove,
    "chmod": lambda files, argv, stdin: _exited(0),
}
OFFERED = frozenset({"python3", "rg", "sh"})
"""Needs that are granted although nothing interprets them, so that any task set can be tried."""
