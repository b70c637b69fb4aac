"""A sandbox that is a folder of this machine, for tests of what runs real commands: `folder_sandbox(TREE)`.

Commands run as this user, with an empty environment and a time limit; `python3` is the interpreter that runs the test.
Nothing is isolated. It is one sandbox and no provider; `scaffold/sandbox` is a whole one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from attrs import evolve

from composer_core.protocols import ExecRequest, ExecResult, TemplateSpec
from composer_core.sandbox import Sandbox
from composer_core.trees import Tree
from composer_envkit import FolderProvider, FolderSandbox, lay, remove


def folder_sandbox(pristine: Tree) -> Sandbox:
    """A sandbox that holds these files; an async context manager, at whose end the folder is removed."""
    provider = FolderProvider(_Here)
    backend = _Here(provider, TemplateSpec(pristine.ref), provider.folder())
    lay(pristine, backend.folder)
    provider.live[backend.id] = backend
    return Sandbox(backend, "fakes/folder", pristine)


class _Here(FolderSandbox):
    async def run(self, request: ExecRequest, cwd: Path) -> ExecResult:
        argv = tuple(sys.executable if word == "python3" else word for word in request.argv)
        return await self.processes.run(evolve(request, argv=argv), cwd, request.env)

    async def destroy(self) -> None:
        await super().destroy()
        await remove(self.provider.root)
