"""What every provider of sandboxes owes, wherever they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable
from typing import Any

from attrs import asdict

from composer_core.errors import PrepareError, SandboxError, SandboxGone, TemplateMissing
from composer_core.protocols import (
    Created,
    Failed,
    SandboxBackend,
    SnapshotRef,
    TemplateRef,
    TemplateSpec,
)
from composer_core.trees import Tree


class Provider:
    """A `protocols.SandboxProvider`; a subclass says how one sandbox is made, in `start`.

    `sources` is template or snapshot id -> (spec, state), the state being what the subclass needs to start from;
    `live` is sandbox id -> sandbox, and a sandbox that was destroyed must no longer stand in it.
    """

    def __init__(self) -> None:
        self.sources: dict[str, tuple[TemplateSpec, Any]] = {}
        self.live: dict[str, SandboxBackend] = {}
        self._preparing = asyncio.Lock()
        self._closed = False

    async def start(self, spec: TemplateSpec, state: Any) -> SandboxBackend:
        """One sandbox. What it raises as OSError or SandboxError is that child's failure and no other's."""
        raise NotImplementedError("make one sandbox")

    async def template(self, spec: TemplateSpec, workspace: Tree) -> Any:
        """The state that sandboxes of a template start from. PrepareError if `spec` cannot be had here."""
        return workspace

    async def probe(self) -> frozenset[str]:
        """The capabilities that really work here; must be all that the record declares."""
        return frozenset()

    async def prepare(self, spec: TemplateSpec, workspace: Tree) -> TemplateRef:
        """Equal specs have equal names and so are one template, laid out once."""
        name = json.dumps(asdict(spec), sort_keys=True)
        async with self._preparing:
            self._open()
            if name not in self.sources:
                check_workspace(spec, workspace)
                self.sources[name] = spec, await self.template(spec, workspace)
        return TemplateRef(name)

    async def create(self, source: TemplateRef | SnapshotRef, n: int = 1) -> list[Created | Failed]:
        """One that cannot be made does not keep the others from being made."""
        self._open()
        found = self.sources.get(source.id)  # it may be released before the last child is made
        if found is None:
            raise TemplateMissing(f"no template or snapshot {source.id!r} is known here")
        children: list[Created | Failed] = []
        try:
            for _ in range(n):
                children.append(await self._child(*found))
        except BaseException:  # cancelled: nobody would ever hold them
            await ended(child.backend.destroy() for child in children if isinstance(child, Created))
            raise
        return children

    async def _child(self, spec: TemplateSpec, state: Any) -> Created | Failed:
        try:
            sandbox = await self.start(spec, state)
        except (OSError, SandboxError) as error:
            return Failed(str(error), getattr(error, "retryable", True))
        self.live[sandbox.id] = sandbox
        return Created(sandbox)

    async def attach(self, sandbox_id: str) -> SandboxBackend:
        if sandbox_id not in self.live:
            raise SandboxGone(f"there is no sandbox {sandbox_id}")
        return self.live[sandbox_id]

    def _open(self) -> None:
        if self._closed:
            raise SandboxGone("the provider was closed")

    async def release(self, ref: SnapshotRef) -> None:
        """A subclass also frees what the snapshot's state holds."""
        self.sources.pop(ref.id, None)

    async def close(self) -> None:
        """Safe twice, and after a start that failed. Nothing is made after it."""
        self._closed = True
        await ended(sandbox.destroy() for sandbox in list(self.live.values()))


def check_workspace(spec: TemplateSpec, workspace: Tree) -> None:
    """For `prepare`: a template is known by its spec, so whoever comes next would get these files for those it names.

    Raises:
        PrepareError: `workspace` is another than `spec` names.
    """
    found = workspace.ref
    if found != spec.workspace:
        raise PrepareError(
            "the workspace is another than the template names",
            expected=spec.workspace.sha256,
            found=found.sha256,
            fix="TemplateSpec(tree.ref) for prepare(spec, tree)",
        )


async def ended(endings: Iterable[Awaitable[None]]) -> None:
    """Await all; one that fails keeps no other, and the first error is raised at the end."""
    for error in filter(None, await asyncio.gather(*endings, return_exceptions=True)):
        raise error
