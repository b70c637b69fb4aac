"""Grading rooms for tests of task sets and rewards: what a reward is given as `grading`.

They are the rooms of a run (`composer_core.grading.Room`) around another sandbox. `rooms_of(FILES)` opens them in
memory, for rewards that read files; `folder_rooms` in a temporary folder, where real commands run as this user with an
empty environment and a time limit (`python3` is the interpreter that runs the test); they isolate nothing. As in a run
a room holds the pristine workspace from the start, so a reward may read a file before it is patched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from composer_core.grading import Room
from composer_core.protocols import GradingRoom, OpenGrading
from composer_core.trees import Tree
from composer_core.types import Grading
from composer_testing.fakes.folder import folder_sandbox
from composer_testing.fakes.sandbox import Command, sandbox_of


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
        async with folder_sandbox(pristine) as sandbox:
            yield Room(sandbox, grading)

    return open_room
