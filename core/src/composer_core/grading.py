"""The grading room: a fresh fork of the pristine template, where a patch is laid down and the hidden files arrive.

The agent's own sandbox never grades it. Of its patch only regular files outside the protected patterns are applied;
hidden files are written last, so they win over whatever the patch put there.
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
        """Apply what is not protected, then the hidden files; returns what was applied of the patch.

        A path that cannot be laid down (a file where the pristine tree has a folder, a quota) is the patch's doing: it
        is left out and named in `skipped`. Anything else is the grader's fault and raises.
        """
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
        await self._lay_hidden()
        return Patch(tuple(applied), allowed.deletes, (*patch.skipped, *refused))

    def _protected(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.grading.protected)

    async def _lay_hidden(self) -> None:
        await self._make_way()
        try:
            await self._sandbox.apply(Patch(self.grading.hidden.files))
        except SandboxError as error:
            raise GradingError(f"the hidden files could not be written: {error.message}") from error

    async def _make_way(self) -> None:
        """Remove files that stand where hidden files need a folder, and folders that stand where they need a file."""
        for file in self.grading.hidden.files:
            parts = file.path.split("/")
            prefixes = ["/".join(parts[:end]) for end in range(1, len(parts))]
            in_the_way = [prefix for prefix in prefixes if await self._kind(prefix) in ("file", "other")]
            if await self._kind(file.path) in ("folder", "other"):
                in_the_way.append(file.path)
            if in_the_way:
                await self._sandbox.exec(["rm", "-rf", "--", in_the_way[0]])

    async def _kind(self, path: str) -> str:
        parent, _, name = path.rpartition("/")
        try:
            entries = await self._sandbox.list(parent)
        except PathError:
            return ""
        return next((entry.kind for entry in entries if entry.name == name), "")

    async def run(self) -> ExecResult:
        return await self._sandbox.exec(self.grading.argv, timeout_s=self.grading.timeout_s)


@asynccontextmanager
async def open_room(sandboxes: Sandboxes, view: TaskView, grading: Grading) -> AsyncIterator[Room]:
    """A room of its own in a fresh sandbox of the task's pristine workspace; destroyed on leaving."""
    async with await sandboxes.create(view) as sandbox:
        yield Room(sandbox, grading)
