"""Sandboxes that are folders: a copy of the workspace, and processes of this user in it. They isolate nothing.

`composer_envkit` holds what such backends share; what is told here is how a command is run.
"""

from pathlib import Path

from attrs import evolve

from composer_core import BuildContext
from composer_core.protocols import ExecRequest, ExecResult
from composer_envkit import FolderProvider, FolderSandbox
from composer_plugin_my_name.plugin import MyNameConfig


class MyNameProvider(FolderProvider):
    """`protocols.SandboxProvider`: every sandbox is a folder below one temporary folder."""

    def __init__(self, config: MyNameConfig, build: BuildContext) -> None:
        super().__init__(MyNameSandbox)


class MyNameSandbox(FolderSandbox):
    """`protocols.SandboxBackend`: its commands yield to whatever else this machine has to do."""

    async def run(self, request: ExecRequest, cwd: Path) -> ExecResult:
        """`nice` becomes the command, so nothing is lost; walls stay: see `composer_envkit.WalledSandbox`."""
        return await super().run(evolve(request, argv=("nice", "-n", "19", *request.argv)), cwd)
