"""The grading room: a fresh fork of the pristine template, where a patch is laid down and the hidden files arrive.

The agent's own sandbox never grades it. Hidden files are written first, so that no patch can take the room they need or
stand in their way; of the patch, regular files are applied that are neither hidden ones nor protected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase

from composer_core.errors import GradingError, PathError, QuotaError, SandboxError
from composer_core.protocols import ExecResult
from composer_core.sandbox import Sandbox, Sandboxes
from composer_core.trees import Patch
from composer_core.types import Grading, TaskView

__all__ = ["Room"]


class Room:
    """Implements `protocols.GradingRoom`."""

    def __init__(self, sandbox: Sandbox, grading: Grading) -> None:
        self.grading = grading
        self._sandbox = sandbox

    @property
    def sandbox(self) -> Sandbox:
        return self._sandbox

    async def apply(self, patch: Patch) -> Patch:
        """Lay the hidden files, then what the patch may touch; returns what was applied of it.

        A path that cannot be laid down (a file where the pristine tree has a folder, a quota) is the patch's doing: it
        is left out and named in `skipped`. Anything else is the grader's fault and raises.
        """
        await self._lay_hidden()
        allowed = patch.only(lambda path: not self._protected(path))
        applied, refused = [], []
        known = self._sandbox.pristine.paths()
        await self._sandbox.apply(Patch(deletes=tuple(path for path in allowed.deletes if path in known)))
        for file in allowed.writes:
            try:
                await self._sandbox.apply(Patch((file,)))
                applied.append(file)
            except (PathError, QuotaError):
                refused.append(file.path)
        return Patch(tuple(applied), allowed.deletes, (*patch.skipped, *refused))

    def _protected(self, path: str) -> bool:
        hidden = self.grading.hidden.find(path) is not None
        return hidden or any(fnmatchcase(path, pattern) for pattern in self.grading.protected)

    async def _lay_hidden(self) -> None:
        try:
            await self._sandbox.apply(Patch(self.grading.hidden.files))
        except SandboxError as error:
            raise GradingError(f"the hidden files could not be written: {error.message}") from error

    async def run(self) -> ExecResult:
        return await self._sandbox.exec(self.grading.argv, timeout_s=self.grading.timeout_s)


@asynccontextmanager
async def open_room(sandboxes: Sandboxes, view: TaskView, grading: Grading) -> AsyncIterator[Room]:
    """A room of its own in a fresh sandbox of the task's pristine workspace; destroyed on leaving."""
    async with await sandboxes.create(view) as sandbox:
        yield Room(sandbox, grading)
