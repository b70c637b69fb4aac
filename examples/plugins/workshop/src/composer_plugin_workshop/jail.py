"""The sandbox backend `workshop/jail`: a folder for each sandbox, one bubblewrap for each command.

A template, a snapshot and a sandbox are the same thing, a folder below one temporary folder; to create, to capture and
to fork is to copy. Not by hard links: a command may write into a file in place, and every copy would change with it.

Nothing runs in a sandbox between commands: what one has started ends with it. So its files can be read and written
from outside, as long as no command runs that could exchange a folder for a link in the meantime; a lock for each
sandbox holds that. One that is not being used costs its files and nothing else.

What it does not do: memory, processes and disk are not limited, so no limit is declared; a run that wants them uses
another backend. Ids mean something in this process only.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import evolve

from composer_core import BuildContext, NoConfig, Tree
from composer_core.errors import (
    BackendError,
    ConfigError,
    PathError,
    PrepareError,
    QuotaError,
    SandboxGone,
    TemplateMissing,
)
from composer_core.hosting import Processes, copy, lay, remove
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

PYTHON = Path(sys.executable).resolve()
ENV = {
    "PATH": f"/usr/local/bin:/usr/bin:/bin:{PYTHON.parent}",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}
SHOWN = list(dict.fromkeys([Path("/usr"), Path(sys.base_prefix).resolve()]))
"""Folders of the host that every sandbox sees, read-only: the system's programs and this interpreter."""
PACKAGES = [found for path in [*SHOWN, Path("/usr/local")] for found in path.glob("lib*/python3*/*-packages")]
"""Shown empty: an installed plugin may hold the answers of its tasks."""
WALLS = [
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--clearenv"),
    *("--cap-drop", "ALL", "--uid", "1000", "--gid", "1000"),
    *(word for path in SHOWN for word in ("--ro-bind", path, path)),
    *(word for path in PACKAGES for word in ("--tmpfs", path, "--remount-ro", path)),
    *(word for name in ("bin", "lib", "lib64", "sbin") for word in ("--symlink", f"usr/{name}", f"/{name}")),
    *(word for name in ("alternatives", "ld.so.cache") for word in ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--remount-ro", "/dev", "--tmpfs", "/tmp"),
]
"""bubblewrap's arguments for every sandbox: new namespaces of every kind and so no network, no privilege to win back, a
/tmp that lasts as long as the command."""
FIRST = """
import os, sys
pid = os.posix_spawn("/bin/sh", ["sh", "-c", 'exec "$@"', "sh", *sys.argv[1:]], os.environ, setsigdef=[13, 25])
status = os.waitpid(pid, 0)[1]
with open("/status", "w") as file:
    file.write(str(status))
sys.exit(status >> 8)
"""
"""The first process inside. bubblewrap returns 128 + n both for a command that a signal ended and for one that exited
so; this writes down which, over whatever the command has written there. Python ignores signals 13 (SIGPIPE) and 25
(SIGXFSZ); the command gets their defaults."""


class JailProvider:
    """`protocols.SandboxProvider`."""

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="workshop-jail-")).resolve()
        self.live: dict[str, Jail] = {}
        self.sources: dict[str, tuple[TemplateSpec, Path]] = {}

    async def probe(self) -> frozenset[str]:
        """Tries one command, since what a kernel allows cannot be read anywhere; ConfigError if it cannot run."""
        try:
            await Jail(self, TemplateSpec(Tree(()).ref), self.folder()).exec(ExecRequest(("true",)))
        except BackendError as error:
            raise ConfigError(
                "workshop/jail cannot run commands here",
                found=str(error),
                fix="apt install bubblewrap (0.8 or newer), allow user namespaces, or use another sandbox",
            ) from error
        return frozenset({"sandbox.isolates", "sandbox.forks", "sandbox.snapshots.files"})

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        missing = [need for need in spec.needs if not shutil.which(need, path=ENV["PATH"])]
        if missing:
            raise PrepareError(f"commands are not installed: {', '.join(missing)}", expected=f"on {ENV['PATH']}")
        if repr(spec) not in self.sources:
            lay(workspace, folder := self.folder())
            self.sources[repr(spec)] = spec, folder
        return TemplateRef(repr(spec))

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> list[Created | Failed]:
        if source.id not in self.sources:
            raise TemplateMissing(f"no template or snapshot {source.id!r} is known here")
        return [await self._child(*self.sources[source.id]) for _ in range(n)]

    async def _child(self, spec: TemplateSpec, source: Path) -> Created | Failed:
        try:
            await copy(source, folder := self.folder())
        except OSError as error:
            return Failed(str(error))
        return Created(Jail(self, spec, folder))

    def folder(self) -> Path:
        """A new folder, whose name is an id that nothing had before."""
        return Path(tempfile.mkdtemp(dir=self.root))

    async def attach(self, sandbox_id: str) -> "Jail":
        if sandbox_id not in self.live:
            raise SandboxGone(f"there is no sandbox {sandbox_id}")
        return self.live[sandbox_id]

    async def close(self) -> None:
        """Safe twice; one sandbox that cannot be destroyed keeps no other, and the first error is raised at the end."""
        for error in filter(
            None,
            (
                *await asyncio.gather(*(one.destroy() for one in list(self.live.values())), return_exceptions=True),
                *await asyncio.gather(remove(self.root), return_exceptions=True),  # fails if anything is left
            ),
        ):
            raise error


class Jail:
    """`protocols.SandboxBackend` with `Forks`; it lives as long as its provider holds it."""

    def __init__(self, provider: JailProvider, spec: TemplateSpec, folder: Path) -> None:
        self.id, self._provider, self._spec, self._folder = folder.name, provider, spec, folder
        self._processes, self._still = Processes(), asyncio.Lock()
        provider.live[self.id] = self

    async def exec(self, request: ExecRequest) -> ExecResult:
        async with self._at(request.cwd) as cwd:
            any(cwd.iterdir())  # PathError unless it is a folder
            with tempfile.NamedTemporaryFile() as status:
                argv = [
                    *("bwrap", *WALLS, "--bind", self._folder, "/workspace", "--bind", status.name, "/status"),
                    *("--remount-ro", "/", "--chdir", Path("/workspace", cwd.relative_to(self._folder))),
                    *(w for pair in {**ENV, **self._spec.env, **request.env}.items() for w in ("--setenv", *pair)),
                    *("--", PYTHON, "-ISc", FIRST, *request.argv),
                ]
                result = await self._processes.run(evolve(request, argv=tuple(map(str, argv))), self._folder, ENV)
                mark = status.read(5)
        await self._provider.attach(self.id)  # SandboxGone if it was destroyed meanwhile
        if not mark and result.exit_code in (1, 127):
            raise BackendError("bubblewrap could not set up a sandbox", found=result.stderr.decode(errors="replace"))
        if number := mark.isdigit() and int(mark) & 127:
            return evolve(result, status="signaled", exit_code=None, signal=number)
        return result

    async def fork(self, n: int) -> list[Created | Failed]:
        return await self._provider.create(await self.snapshot(), n)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        async with self._at(path) as found:
            if found.stat().st_size > limit_bytes and found.is_file():
                raise QuotaError(f"{path!r} has more than {limit_bytes} bytes")
            return found.read_bytes()

    async def write(self, path: str, data: bytes) -> None:
        if len(data) > self._spec.file_bytes:
            raise QuotaError(f"{path!r} would have more than {self._spec.file_bytes} bytes")
        async with self._at(path) as found:
            found.parent.mkdir(parents=True, exist_ok=True)
            found.write_bytes(data)

    async def list(self, path: str) -> list[Entry]:
        async with self._at(path) as found:
            return [entry(one) for one in sorted(found.iterdir())]

    async def snapshot(self) -> SnapshotRef:
        async with self._at("") as found:
            await copy(found, folder := self._provider.folder())
        self._provider.sources[folder.name] = self._spec, folder
        return SnapshotRef(folder.name)

    async def destroy(self) -> None:
        """Safe twice; commands that still run are killed, and their callers told that the sandbox is gone."""
        self._provider.live.pop(self.id, None)
        await self._processes.kill()
        await remove(self._folder)

    @asynccontextmanager
    async def _at(self, path: str) -> AsyncIterator[Path]:
        """Where `path` really is, while no command runs here; what does not fit or fails below is a PathError."""
        async with self._still:
            await self._provider.attach(self.id)
            try:
                found = (self._folder / path).resolve()
                if not found.is_relative_to(self._folder) or found.is_fifo() or found.is_socket():
                    raise ValueError("it is not a file or folder of the workspace")
                yield found
            except (OSError, ValueError, RuntimeError) as error:
                raise PathError(f"{path!r}: {error}") from error


def entry(path: Path) -> Entry:
    """Links are neither files nor folders; a name that is no UTF-8 is shown escaped and so is part of no patch."""
    name = path.name.encode(errors="backslashreplace").decode()
    odd = name != path.name or path.is_symlink()
    kind = "other" if odd else "folder" if path.is_dir() else "file" if path.is_file() else "other"
    return Entry(name, kind, path.stat().st_size if kind == "file" else 0)
