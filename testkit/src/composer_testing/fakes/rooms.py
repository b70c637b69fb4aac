"""Grading rooms for tests of task sets and rewards: what a reward is given as `grading`.

`rooms_of(FILES)` opens them in memory, for rewards that read files; `folder_rooms` in a temporary folder, where real
commands run as this user with an empty environment and a time limit (`python3` is the interpreter that runs the test);
they isolate nothing. As in a run a room holds the pristine workspace from the start, so a reward may read a file before
it is patched.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from attrs import define, frozen

from composer_core.errors import PathError
from composer_core.grading import Room
from composer_core.hosting import Processes, lay
from composer_core.protocols import ExecRequest, ExecResult, GradingRoom, OpenGrading
from composer_core.trees import Patch, Tree
from composer_core.types import Grading
from composer_testing.fakes.sandbox import Command, sandbox_of


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
        argv = tuple(sys.executable if word == "python3" else word for word in self.grading.argv)
        return await Processes().run(ExecRequest(argv, timeout_s=self.grading.timeout_s), self.root, {})


def rooms_of(
    files: Mapping[str, str | bytes], grading: Grading | None = None, commands: Mapping[str, Command] | None = None
) -> OpenGrading:
    """Rooms in memory around a workspace of these files; `commands` are those that `grading` runs."""

    @asynccontextmanager
    async def open_room() -> AsyncIterator[GradingRoom]:
        yield Room(sandbox_of(files, commands), grading or Grading(Tree(()), ("true",)))

    return open_room


def folder_rooms(pristine: Tree, grading: Grading) -> OpenGrading:
    """Rooms in a folder; each call opens a fresh one."""

    @asynccontextmanager
    async def open_room() -> AsyncIterator[GradingRoom]:
        with tempfile.TemporaryDirectory() as folder:
            lay(pristine, Path(folder))
            yield FolderRoom(Path(folder), pristine, grading)

    return open_room
