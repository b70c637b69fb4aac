"""A grading room in a temporary folder, for tests of task sets and rewards. It isolates nothing.

As in a run the room holds the pristine workspace from the start, so a reward may read a file before it is patched.
Commands run as this user with an empty environment and a time limit; `python3` is the interpreter that runs the test.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from attrs import define, frozen

from composer_core.errors import PathError
from composer_core.protocols import ExecResult, GradingRoom, OpenGrading
from composer_core.trees import Patch, Tree
from composer_core.types import Grading


@frozen
class FolderSandbox:
    """Reads files of a folder."""

    root: Path

    async def read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except OSError as error:
            raise PathError(str(error)) from error


@define
class FolderRoom:
    """`protocols.GradingRoom` below `root`."""

    root: Path
    pristine: Tree
    grading: Grading

    @property
    def sandbox(self) -> FolderSandbox:
        return FolderSandbox(self.root)

    async def apply(self, patch: Patch) -> Patch:
        applied = patch.only(lambda path: not any(fnmatchcase(path, one) for one in self.grading.protected))
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        lay(Patch(self.grading.hidden.files).apply(applied.apply(self.pristine)), self.root)
        return applied

    async def run(self) -> ExecResult:
        argv = [sys.executable if word == "python3" else word for word in self.grading.argv]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=self.root,
            env={},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), self.grading.timeout_s)
        except TimeoutError:
            return ExecResult("timeout", None)
        finally:
            _kill_session(process.pid)
            await process.wait()
        code = process.returncode or 0
        return (
            ExecResult("signaled", None, out, err, signal=-code) if code < 0 else ExecResult("exited", code, out, err)
        )


def folder_rooms(pristine: Tree, grading: Grading) -> OpenGrading:
    """What a reward is given as `grading`: each call opens a fresh room."""

    @asynccontextmanager
    async def open_room() -> AsyncIterator[GradingRoom]:
        with tempfile.TemporaryDirectory() as folder:
            lay(pristine, Path(folder))
            yield FolderRoom(Path(folder), pristine, grading)

    def opened() -> AbstractAsyncContextManager[GradingRoom]:
        return open_room()

    return opened


def lay(tree: Tree, root: Path) -> None:
    """Write a tree into a folder."""
    for file in tree.files:
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
