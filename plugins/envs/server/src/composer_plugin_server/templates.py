"""Templates of a node: one id for equal specs on every node, prepared once, from files that were sent before."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict

from attrs import asdict, define, field, frozen

from composer_core.errors import boundary
from composer_core.protocols import SandboxProvider, TemplateRef, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_server.wire import WorkspaceMissing

TREES = 16
"""Workspaces that are held between their arrival and their template."""


@frozen
class Template:
    """A prepared one."""

    ref: TemplateRef
    """The provider's."""
    memory_bytes: int
    """What a sandbox of it is counted with."""


@define(eq=False, repr=False)
class Templates:
    """For one event loop."""

    provider: SandboxProvider
    plugin: str
    reserve: float
    _trees: OrderedDict[str, Tree] = field(factory=OrderedDict)
    _ready: dict[str, Template] = field(factory=dict)
    _preparing: dict[str, asyncio.Task[None]] = field(factory=dict)

    def find(self, id: str) -> Template | None:
        return self._ready.get(id)

    def forget(self, id: str) -> None:
        """The provider has lost it."""
        self._ready.pop(id, None)

    def offer(self, tree: Tree) -> None:
        """The files of a workspace, until its template is prepared."""
        self._trees[tree.ref.sha256] = tree
        while len(self._trees) > TREES:
            self._trees.popitem(last=False)

    async def prepare(self, spec: TemplateSpec) -> str:
        """The template's id.

        Raises:
            WorkspaceMissing: its files must be offered first.
        """
        id = hashlib.sha256(json.dumps(asdict(spec), sort_keys=True).encode()).hexdigest()
        if id not in self._ready:
            task = self._preparing.get(id)
            if task is None:
                tree = self._trees.get(spec.workspace.sha256)
                if tree is None:
                    raise WorkspaceMissing("the files of this workspace are not here", found=spec.workspace.sha256)
                task = self._preparing[id] = asyncio.ensure_future(self._prepare(id, spec, tree))
                task.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever waited is told
            await asyncio.shield(task)
        return id

    async def _prepare(self, id: str, spec: TemplateSpec, tree: Tree) -> None:
        try:
            with boundary("sandboxes", self.plugin):
                ref = await self.provider.prepare(spec, tree)
            self._ready[id] = Template(ref, int(spec.memory_bytes * self.reserve))
        finally:
            del self._preparing[id]

    async def close(self) -> None:
        """Nobody waits for what is being prepared."""
        tasks = list(self._preparing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
