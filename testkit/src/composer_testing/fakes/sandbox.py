"""Sandboxes in memory: a workspace is a dictionary, a command a Python function. No process, no disk.

Commands beyond the built-in true, false, echo, cat, rm and chmod are given as functions
`(files, argv, stdin) -> ExecResult` that may change `files`. Forks, file snapshots and changes are supported.

A test of a tool needs `sandbox_of({"a.py": "x = 1"})` and no more: `ToolContext(sandbox_of(FILES), state={})`. For
rewards there is `rooms.rooms_of`.
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
from composer_core.sandbox import Sandbox
from composer_core.trees import File, Patch, Tree
from composer_envkit import check_workspace

Files = dict[str, bytes]
Command = Callable[[Files, Sequence[str], bytes], ExecResult | Awaitable[ExecResult]]
Children = list[Created | Failed]
Entries = list[Entry]


def sandbox_of(files: Mapping[str, str | bytes], commands: Mapping[str, Command] | None = None) -> Sandbox:
    """A sandbox in memory that holds these files, as tools and rewards meet it; nothing has to be closed."""
    tree, provider = Tree.of(files), MemoryProvider(commands)
    return Sandbox(provider.place(TemplateSpec(tree.ref), tree), "fakes/memory", tree)


class MemoryProvider:
    """A `SandboxProvider`; `failures` is how many of the next creations fail, to test what retries."""

    def __init__(self, commands: Mapping[str, Command] | None = None) -> None:
        self.commands = {**BUILT_IN, **(commands or {})}
        self.prepared = 0
        self.failures = 0
        self.live: dict[str, MemorySandbox] = {}
        self._states: dict[str, tuple[TemplateSpec, Tree, Tree]] = {}
        self._count = 0
        self._closed = False

    async def probe(self) -> frozenset[str]:
        return frozenset({"sandbox.forks", "sandbox.snapshots.files", "sandbox.changes"})

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        missing = [need for need in spec.needs if need not in self.commands and need not in OFFERED]
        if missing:
            raise PrepareError(f"commands are not scripted: {', '.join(missing)}")
        fields = [spec.workspace.sha256, spec.needs, spec.file_bytes, sorted(spec.env.items())]
        name = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
        self._open()
        if name not in self._states:
            check_workspace(spec, workspace)
            self.prepared += 1
            self._states[name] = (spec, workspace, workspace)
        return TemplateRef(name)

    def _open(self) -> None:
        if self._closed:
            raise SandboxGone("the provider was closed")

    async def release(self, ref: SnapshotRef) -> None:
        self._states.pop(ref.id, None)

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> Children:
        self._open()
        if source.id not in self._states:
            raise TemplateMissing(f"no template or snapshot {source.id!r} is known here")
        return [self._child(*self._states[source.id]) for _ in range(n)]

    def _child(self, spec: TemplateSpec, pristine: Tree, now: Tree) -> Created | Failed:
        if self.failures:
            self.failures -= 1
            return Failed("a failure that the test asked for")
        return Created(self.place(spec, pristine, now))

    def place(self, spec: TemplateSpec, pristine: Tree, now: Tree | None = None) -> MemorySandbox:
        """A live sandbox that holds `now`, or else `pristine`."""
        sandbox = MemorySandbox(self, self._name("sandbox"), spec, pristine, now or pristine)
        self.live[sandbox.id] = sandbox
        return sandbox

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def capture(self, sandbox: MemorySandbox) -> SnapshotRef:
        name = self._name("snapshot")
        self._states[name] = (sandbox.spec, sandbox.pristine, sandbox.tree())
        return SnapshotRef(name)

    async def attach(self, sandbox_id: str) -> MemorySandbox:
        if sandbox_id not in self.live:
            raise SandboxGone(f"there is no sandbox {sandbox_id}")
        return self.live[sandbox_id]

    async def close(self) -> None:
        self._closed = True
        self.live.clear()
        self._states.clear()


class MemorySandbox:
    """A `SandboxBackend` with Forks and Changes."""

    def __init__(self, provider: MemoryProvider, name: str, spec: TemplateSpec, pristine: Tree, now: Tree) -> None:
        self.id = name
        self.provider, self.spec, self.pristine = provider, spec, pristine
        self.files = {file.path: file.data for file in now.files}
        self.executable = {file.path for file in now.files if file.executable}

    def tree(self) -> Tree:
        return Tree(tuple(File(path, data, path in self.executable) for path, data in self.files.items()))

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
        if path not in self.files:
            raise PathError(f"{path!r}: {'it is a folder' if self._is_folder(path) else 'there is no such path'}")
        if len(self.files[path]) > limit_bytes:
            raise QuotaError(f"{path!r}: {len(self.files[path])} bytes, the limit is {limit_bytes}")
        return self.files[path]

    async def write(self, path: str, data: bytes) -> None:
        self._alive()
        parts = path.split("/")
        if self._is_folder(path) or any("/".join(parts[:end]) in self.files for end in range(1, len(parts))):
            raise PathError(f"{path!r}: it is a folder, or a part of it is a file")
        if len(data) > self.spec.file_bytes:
            raise QuotaError(f"{path!r}: {len(data)} bytes, the limit is {self.spec.file_bytes}")
        self.files[path] = data

    async def list(self, path: str) -> Entries:
        self._alive()
        if not self._is_folder(path):
            raise PathError(f"{path!r}: there is no such folder")
        prefix = f"{path}/" if path else ""
        found: dict[str, Entry] = {}
        for file, data in self.files.items():
            if file.startswith(prefix):
                head, _, rest = file[len(prefix) :].partition("/")
                found[head] = Entry(head, "folder") if rest else Entry(head, "file", len(data))
        return [found[key] for key in sorted(found)]

    def _is_folder(self, path: str) -> bool:
        return not path or any(file.startswith(f"{path}/") for file in self.files)

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
        state = self.provider.capture(self)
        children = await self.provider.create(state, n)
        await self.provider.release(state)
        return children

    async def changes(self, limit_bytes: int) -> Patch:
        self._alive()
        patch = Patch.between(self.pristine, self.tree())
        large = tuple(sorted(file.path for file in patch.writes if len(file.data) > limit_bytes))
        return Patch(tuple(file for file in patch.writes if file.path not in large), patch.deletes, large)


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
OFFERED = frozenset({"python3", "rg", "ruff", "sh"})
"""Needs that are granted although nothing interprets them, so that any task set can be tried."""
