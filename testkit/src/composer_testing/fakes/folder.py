"""A sandbox that is a folder of this machine, for tests of what runs real commands: `folder_sandbox(TREE)`.

Commands run as this user, with an empty environment and a time limit; `python3` is the interpreter that runs the test.
Nothing is isolated: links lead where they lead. It is one sandbox and no provider; `scaffold/sandbox` is a whole one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import evolve

from composer_core.errors import PathError, QuotaError
from composer_core.hosting import Processes, lay, remove
from composer_core.protocols import Entry, ExecRequest, ExecResult, TemplateSpec
from composer_core.sandbox import Sandbox
from composer_core.trees import Tree

Entries = list[Entry]


def folder_sandbox(pristine: Tree) -> Sandbox:
    """A sandbox that holds these files; an async context manager, at whose end the folder is removed."""
    root = Path(tempfile.mkdtemp(prefix="composer-folder-"))
    lay(pristine, root)
    return Sandbox(FolderBackend(root, TemplateSpec(pristine.ref)), "fakes/folder", pristine)


class FolderBackend:
    """`protocols.SandboxBackend` over the folder `root`."""

    def __init__(self, root: Path, spec: TemplateSpec) -> None:
        self.id, self.root, self._spec = root.name, root, spec
        self._processes = Processes()

    async def exec(self, request: ExecRequest) -> ExecResult:
        argv = tuple(sys.executable if word == "python3" else word for word in request.argv)
        with self._at(request.cwd) as folder:
            return await self._processes.run(evolve(request, argv=argv), folder, request.env)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        with self._at(path) as file:
            if not file.is_file():
                raise PathError(f"{path!r}: there is no such file")
            if file.stat().st_size > limit_bytes:
                raise QuotaError(f"{path!r}: {file.stat().st_size} bytes, the limit is {limit_bytes}")
            return file.read_bytes()

    async def write(self, path: str, data: bytes) -> None:
        if len(data) > self._spec.file_bytes:
            raise QuotaError(f"{path!r}: {len(data)} bytes, the limit is {self._spec.file_bytes}")
        with self._at(path) as file:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    async def list(self, path: str) -> Entries:
        with self._at(path) as folder:
            return [_entry(found) for found in sorted(folder.iterdir())]

    async def destroy(self) -> None:
        await self._processes.kill()
        await remove(self.root)

    @contextmanager
    def _at(self, path: str) -> Iterator[Path]:
        try:
            yield self.root / path
        except OSError as error:
            raise PathError(f"{path!r}: {error.strerror}") from error


def _entry(path: Path) -> Entry:
    if path.is_symlink() or not (path.is_dir() or path.is_file()):
        return Entry(path.name, "other")
    return Entry(path.name, "folder") if path.is_dir() else Entry(path.name, "file", path.stat().st_size)
