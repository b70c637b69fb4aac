"""`local/process`: plain processes in a copied folder. It isolates nothing: trusted code only.

For machines without namespaces, and for code of one's own. Commands run as this user, with this machine's files and
network in reach; the environment is built from empty, output and time are limited, and a command's process group is
killed at its end (a process that leaves its session survives: that is what "isolates nothing" means).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from composer_core.protocols import BuildContext, ExecRequest, ExecResult
from composer_envkit import FolderProvider, FolderSandbox
from composer_plugin_local.config import ProcessConfig


def build(config: ProcessConfig, build: BuildContext) -> ProcessProvider:
    return ProcessProvider(config)


class ProcessProvider(FolderProvider):
    """A `SandboxProvider` of folders below one temporary folder."""

    def __init__(self, config: ProcessConfig | None = None) -> None:
        super().__init__(ProcessSandbox, f"/usr/local/bin:/usr/bin:/bin:{sys.base_prefix}/bin")
        self.gate = asyncio.Semaphore((config or ProcessConfig()).commands)


class ProcessSandbox(FolderSandbox):
    """A `SandboxBackend` with `Forks`; its commands run one after the other, at most `commands` in all sandboxes."""

    provider: ProcessProvider

    async def run(self, request: ExecRequest, cwd: Path) -> ExecResult:
        async with self.provider.gate:
            return await super().run(request, cwd)

    def environment(self, request: ExecRequest) -> dict[str, str]:
        (self.home / "tmp").mkdir(exist_ok=True)
        tmp = {name: str(self.home / "tmp") for name in ("HOME", "TMPDIR")}
        own = {**super().environment(request), **tmp, "PYTHONDONTWRITEBYTECODE": "1"}
        return {**own, **self.spec.env, **request.env}
