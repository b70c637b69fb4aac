"""The final Sandbox around any backend, and a node's manager of sandboxes.

A backend is small and may be anybody's; what every sandbox owes its user stands here once: limits on what a command
prints, paths that stay inside as text, errors with the plugin's name, the workspace as a tree, the agent's patch. A
capability that the backend lacks raises `Unsupported`; nothing is replaced by something weaker.

This module decides neither what is run in a sandbox nor what a fault means for an episode.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from posixpath import normpath
from types import TracebackType
from typing import Any, Self, TypeVar

from attrs import asdict, evolve, field, frozen

from composer_core.capabilities import CAPABILITIES
from composer_core.config import SandboxLimits
from composer_core.errors import (
    BackendError,
    NoCapacity,
    PathError,
    SandboxError,
    TemplateMissing,
    Unsupported,
    boundary,
)
from composer_core.protocols import (
    Changes,
    Created,
    Entry,
    ExecRequest,
    ExecResult,
    Failed,
    Forks,
    FullSnapshots,
    Leases,
    Networks,
    Pauses,
    SandboxBackend,
    SandboxProvider,
    Sessions,
    SnapshotRef,
    TemplateRef,
    TemplateSpec,
)
from composer_core.trees import REPOSITORY, SCRATCH, File, Patch, Tree, TreeRef
from composer_core.types import TaskView

__all__ = [
    "CallLimits",
    "Sandbox",
    "Sandboxes",
]

T = TypeVar("T")
Children = list["Sandbox | Failed"]
Entries = list[Entry]

TRIES = 3
"""Times a retryable failure to create is tried again before it counts."""
PAUSE_S = 0.05
DEEPEST = 200
"""Levels of folders that are looked into for files; a command may nest them without end."""
KEPT_TIMES = 4096
"""Latencies kept of each kind, newest last."""
PATH_BYTES, NAME_BYTES = 4095, 255
"""Longest path, and longest part of one, that Linux takes."""


@frozen
class CallLimits:
    """What one call may move between sandbox and host."""

    command_s: float = 10.0
    """Wall clock of a command that names none."""
    output_bytes: int = 1 << 20
    """Kept of each of stdout and stderr."""
    read_bytes: int = 16 << 20
    """Largest file that is read whole."""
    patch_file_bytes: int = 1 << 20
    """Largest file of a patch; larger ones are skipped and named."""


@frozen
class Times:
    """Latencies in seconds, bounded, for percentiles."""

    create_s: deque[float] = field(factory=lambda: deque(maxlen=KEPT_TIMES))
    fork_s: deque[float] = field(factory=lambda: deque(maxlen=KEPT_TIMES))
    exec_s: deque[float] = field(factory=lambda: deque(maxlen=KEPT_TIMES))


class Sandbox:
    """One live sandbox, whatever the backend; an async context manager that destroys it. Final.

    `plugin` is the provider's component id, `pristine` the workspace it was created from.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        plugin: str,
        pristine: Tree,
        limits: CallLimits | None = None,
        times: Times | None = None,
    ) -> None:
        self.backend = backend
        self.plugin = plugin
        self.pristine = pristine
        self.limits = limits or CallLimits()
        self.times = times or Times()
        self._destroyed = False

    @property
    def id(self) -> str:
        return self.backend.id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.ensure_future(self.destroy()))

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
    ) -> ExecResult:
        """Run a command to its end; its output is cut at `limits.output_bytes` a stream, totals stay true."""
        request = self._request(argv, timeout_s, stdin, env, cwd)
        started = time.perf_counter()
        result = self._capped(await self._call(self.backend.exec(request)))
        self.times.exec_s.append(time.perf_counter() - started)
        return result

    def _request(
        self, argv: Sequence[str], timeout_s: float | None, stdin: bytes, env: Mapping[str, str] | None, cwd: str
    ) -> ExecRequest:
        limits = self.limits
        wait_s = limits.command_s if timeout_s is None else timeout_s
        return ExecRequest(argv, clean(cwd), stdin, dict(env or {}), wait_s, limits.output_bytes)

    def _capped(self, result: ExecResult) -> ExecResult:
        cap = self.limits.output_bytes
        return evolve(
            result,
            stdout=result.stdout[:cap],
            stderr=result.stderr[:cap],
            stdout_bytes=max(result.stdout_bytes, len(result.stdout)),
            stderr_bytes=max(result.stderr_bytes, len(result.stderr)),
        )

    async def read(self, path: str) -> bytes:
        return await self._call(self.backend.read(_file(path), self.limits.read_bytes))

    async def write(self, path: str, data: bytes) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise BackendError("a file's content is bytes", found=type(data).__name__, fix="text.encode()")
        await self._call(self.backend.write(_file(path), data))

    async def list(self, path: str = "") -> Entries:
        return await self._call(self.backend.list(clean(path)))

    async def destroy(self) -> None:
        """Safe twice."""
        if not self._destroyed:
            await self._call(self.backend.destroy())
            self._destroyed = True

    # --- the workspace as a value -----------------------------------------------------------------------------

    async def tree(self) -> Tree:
        """Every regular file of the workspace. A listing tells no executable bits: pristine ones hold."""
        return (await self._walk())[0]

    async def patch(self) -> Patch:
        """What changed since the workspace was pristine, SCRATCH and REPOSITORY left out: the declared artifact."""
        found = await self._changes()
        skipped = tuple(path for path in found.skipped if not _apart(path))
        return evolve(found.only(lambda path: not _apart(path)), skipped=skipped)

    async def _changes(self) -> Patch:
        if isinstance(self.backend, Changes):
            return await self._call(self.backend.changes(self.limits.patch_file_bytes))
        after, skipped = await self._walk(self.limits.patch_file_bytes)
        patch = Patch.between(self.pristine, after)
        kept = tuple(path for path in patch.deletes if path not in skipped.large)
        return Patch(patch.writes, kept, tuple(sorted(skipped.other | skipped.large)))

    async def _walk(self, limit_bytes: int | None = None) -> tuple[Tree, _Skipped]:
        modes = {file.path: file.executable for file in self.pristine.files}
        files, folders, skipped = [], [""], _Skipped()
        while folders:
            folder = folders.pop()
            for entry in await self._reached(self.list(folder), folder, skipped) or ():
                path = f"{folder}/{entry.name}".lstrip("/")
                if entry.kind == "folder" and path.count("/") < DEEPEST:
                    folders.append(path)
                elif entry.kind != "file":
                    skipped.other.add(path)
                elif limit_bytes is not None and entry.size_bytes > limit_bytes:
                    skipped.large.add(path)
                elif (data := await self._reached(self.read(path), path, skipped)) is not None:
                    files.append(File(path, data, modes.get(path, False)))
        return Tree(tuple(files)), skipped

    async def _reached(self, call: Awaitable[T], path: str, skipped: _Skipped) -> T | None:
        """None for what a command has put out of reach: its rights taken away, its path longer than a path may be."""
        try:
            return await call
        except PathError:
            skipped.other.add(path)
            return None

    async def apply(self, patch: Patch) -> None:
        """Lay a patch over the workspace; a backend removes files, and makes them executable, by command."""
        await self._each(("rm", "-f", "--"), patch.deletes)
        for file in patch.writes:
            await self.write(file.path, file.data)
        await self._each(("chmod", "+x", "--"), [file.path for file in patch.writes if file.executable])

    async def _each(self, words: Sequence[str], paths: Sequence[str]) -> None:
        """A command on so many paths at a time as a command line holds."""
        for start in range(0, len(paths), 200):
            result = await self.exec([*words, *paths[start : start + 200]])
            if result.status != "exited" or result.exit_code:
                text = result.stderr.decode(errors="replace").strip()
                raise BackendError(f"a patch could not be applied: {words[0]} failed", who=self.plugin, found=text)

    # --- optional capabilities --------------------------------------------------------------------------------

    async def snapshot(self) -> SnapshotRef:
        ref: SnapshotRef = await self._call(self._need(Forks, "sandbox.snapshots.files").snapshot())
        return ref

    async def fork(self, n: int) -> Children:
        """n new sandboxes from one capture of this one; each is a sandbox or the reason why not."""
        backend = self._need(Forks, "sandbox.forks")
        if n < 1:
            raise BackendError("a fork has at least one child", found=str(n))
        started = time.perf_counter()
        children: list[Created | Failed] = await self._call(backend.fork(n))
        self.times.fork_s.append(time.perf_counter() - started)
        return [child if isinstance(child, Failed) else self._child(child) for child in children]

    def _child(self, created: Created) -> Sandbox:
        return Sandbox(created.backend, self.plugin, self.pristine, self.limits, self.times)

    async def full_snapshot(self) -> SnapshotRef:
        ref: SnapshotRef = await self._call(self._need(FullSnapshots, "sandbox.snapshots.full").full_snapshot())
        return ref

    async def session_exec(self, name: str, argv: Sequence[str], *, timeout_s: float | None = None) -> ExecResult:
        backend = self._need(Sessions, "sandbox.sessions")
        if not 0 < len(name) <= NAME_BYTES or "/" in name:
            raise BackendError("a session's name has 1 to 255 characters and no '/'", found=repr(name[:NAME_BYTES]))
        return self._capped(await self._call(backend.session_exec(name, self._request(argv, timeout_s, b"", None, ""))))

    async def pause(self) -> None:
        await self._call(self._need(Pauses, "sandbox.pauses").pause())

    async def resume(self) -> None:
        await self._call(self._need(Pauses, "sandbox.pauses").resume())

    async def set_network(self, allow: Sequence[str]) -> None:
        await self._call(self._need(Networks, "sandbox.networks").set_network(allow))

    async def renew(self, lease_s: float) -> None:
        await self._call(self._need(Leases, "sandbox.leases").renew(lease_s))

    def _need(self, protocol: Any, name: str) -> Any:
        """The backend, if it has the methods of `protocol`, which a record declares as the capability `name`."""
        if isinstance(self.backend, protocol):
            return self.backend
        methods = [method for method in vars(protocol) if method[0] != "_"]
        missing = [f"{method}()" for method in methods if not hasattr(self.backend, method)]
        raise Unsupported(
            f"sandboxes of {self.plugin} do not offer {name!r}",
            who=self.plugin,
            expected=f"{CAPABILITIES[name]} (protocols.{protocol.__name__})",
            found=f"a {type(self.backend).__name__} without {', '.join(missing)}",
            fix=f"use another sandbox, or write what is missing and declare {name!r} in the record and in probe()",
        )

    async def _call(self, call: Awaitable[T]) -> T:
        with boundary("sandboxes", self.plugin):
            return await call


def clean(path: str) -> str:
    """`path` as a backend is given it: its names with a "/" between, no "." and no "..", "" for the workspace.

    So no backend has to look at text. Where links lead is a backend's to hold: they can change until a file is opened.

    Raises:
        PathError: the path is absolute or leads out, or no file can be named so.
    """
    found = normpath(path)
    wrong = _unnameable(path, found)
    if wrong:
        raise PathError(f"{path[:NAME_BYTES]!r}: {wrong}")
    return found if found != "." else ""


def _unnameable(path: str, found: str) -> str:
    """Why no file of the workspace can be named so; "" if one can."""
    try:
        names = found.encode().split(b"/")
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        return "it holds half a character"
    if not names[0]:
        return "paths are relative to the workspace"
    if names[0] == b"..":
        return "the path leads out of the workspace"
    if "\0" in path:
        return "a name holds no null"
    return "it is too long" if len(found.encode()) > PATH_BYTES or max(map(len, names)) > NAME_BYTES else ""


def _apart(path: str) -> bool:
    return path.partition("/")[0] in (SCRATCH, REPOSITORY)


def _file(path: str) -> str:
    """A clean path that is not the workspace's own."""
    cleaned = clean(path)
    if not cleaned:
        raise PathError(f"{path!r}: the workspace is a folder, no file")
    return cleaned


@frozen
class _Skipped:
    other: set[str] = field(factory=set)
    large: set[str] = field(factory=set)


class Sandboxes:
    """A node's sandboxes of one provider: templates prepared once, one sandbox for one episode, times counted.

    `tree_of` resolves a workspace reference and is called once for each; `limits` are those of every template;
    `allow` is what commands of an episode may reach, which is for whoever runs one to set.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        plugin: str,
        tree_of: Callable[[TreeRef], Tree],
        limits: SandboxLimits | None = None,
        allow: tuple[str, ...] = (),
    ) -> None:
        self.allow = allow
        self.provider = provider
        self.plugin = plugin
        self.limits = limits or SandboxLimits()
        self.times = Times()
        self.created = 0
        self.failed = 0
        self._tree_of = tree_of
        self._templates: dict[TemplateSpec, asyncio.Task[TemplateRef]] = {}
        self._trees: dict[TreeRef, Tree] = {}

    async def probe(self) -> frozenset[str]:
        with boundary("sandboxes", self.plugin):
            return await self.provider.probe()

    async def template(self, spec: TemplateSpec) -> TemplateRef:
        """The prepared template of `spec`; equal specs are prepared once, and a failure is not remembered."""
        spec = evolve(spec, env=_Env(spec.env))
        task = self._templates.get(spec)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._templates[spec] = asyncio.ensure_future(self._prepare(spec))
        return await asyncio.shield(task)

    async def _prepare(self, spec: TemplateSpec) -> TemplateRef:
        with boundary("sandboxes", self.plugin):
            return await self.provider.prepare(spec, self.tree(spec.workspace))

    def offer(self, tree: Tree) -> TreeRef:
        """Make a workspace known that the task set does not hold."""
        self._trees[tree.ref] = tree
        return tree.ref

    def tree(self, ref: TreeRef) -> Tree:
        if ref not in self._trees:
            self._trees[ref] = self._tree_of(ref)
        return self._trees[ref]

    async def create(self, view: TaskView, *, extra_needs: Sequence[str] = ()) -> Sandbox:
        """A fresh sandbox of the task's workspace.

        Raises:
            SandboxError: typed; what is retryable was tried again a bounded number of times before.
        """
        spec = TemplateSpec(view.workspace, tuple(sorted({*view.needs, *extra_needs})), **asdict(self.limits))
        started = time.perf_counter()
        for left in reversed(range(TRIES)):
            try:
                backend = await self._one(spec)
                break
            except SandboxError as error:
                if not left or not (error.retryable or isinstance(error, TemplateMissing)):
                    self.failed += 1
                    raise
                if isinstance(error, TemplateMissing):
                    self._templates.pop(evolve(spec, env=_Env(spec.env)), None)
                await asyncio.sleep(float(error.fields.get("retry_after_s", PAUSE_S)))
        self.created += 1
        self.times.create_s.append(time.perf_counter() - started)
        limits = CallLimits(view.limits.command_s, read_bytes=self.limits.file_bytes)
        return Sandbox(backend, self.plugin, self.tree(view.workspace), limits, self.times)

    async def _one(self, spec: TemplateSpec) -> SandboxBackend:
        template = await self.template(spec)
        with boundary("sandboxes", self.plugin):
            (child,) = await self.provider.create(template, 1)
        if isinstance(child, Failed):
            kind: type[SandboxError] = NoCapacity if child.retryable else BackendError
            raise kind(f"{self.plugin} could not create a sandbox: {child.error}", who=self.plugin)
        missing = [method for method in vars(SandboxBackend) if method[0] != "_" and not hasattr(child.backend, method)]
        if missing:
            if "destroy" not in missing:
                with boundary("sandboxes", self.plugin):
                    await child.backend.destroy()
            found = f"a {type(child.backend).__name__} without {', '.join(missing)}"
            raise BackendError(f"a sandbox of {self.plugin} lacks what every one has", who=self.plugin, found=found)
        return child.backend

    def stats(self) -> Mapping[str, float]:
        """Counts, and medians in milliseconds of what was done at least once."""
        found = {"sandboxes_created": float(self.created), "sandboxes_failed": float(self.failed)}
        kinds = {"create": self.times.create_s, "fork": self.times.fork_s, "exec": self.times.exec_s}
        for name, times in kinds.items():
            if times:
                found[f"{name}_p50_ms"] = sorted(times)[len(times) // 2] * 1e3
        return found

    async def close(self) -> None:
        """Safe twice."""
        for task in self._templates.values():
            task.cancel()
        try:
            await asyncio.gather(*self._templates.values(), return_exceptions=True)
        finally:  # also for whoever is cancelled while it closes
            self._templates.clear()
            with boundary("sandboxes", self.plugin):
                await self.provider.close()


class _Env(dict[str, Any]):
    """A template's environment as part of a dictionary key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))
