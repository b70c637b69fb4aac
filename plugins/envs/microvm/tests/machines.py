"""What the tests of machines share: a provider for one act, and shell commands in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from composer_core.protocols import Created, ExecRequest, ExecResult, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_microvm.config import FirecrackerConfig, QemuConfig
from composer_plugin_microvm.firecracker_driver import FirecrackerDriver
from composer_plugin_microvm.provider import MachineProvider
from composer_plugin_microvm.qemu_driver import QemuDriver
from composer_plugin_microvm.sandbox import MachineSandbox

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n"})
SPEC = TemplateSpec(TREE.ref, file_bytes=1 << 20, disk_bytes=8 << 20, memory_bytes=128 << 20, processes=24)
Act = Callable[[MachineSandbox, MachineProvider], Awaitable[Any]]


def new_provider(config: QemuConfig | FirecrackerConfig | None = None) -> MachineProvider:
    settings = config or QemuConfig()
    if isinstance(settings, FirecrackerConfig):
        return MachineProvider(settings, FirecrackerDriver(settings))
    return MachineProvider(settings, QemuDriver(settings))


def act(action: Act, config: QemuConfig | FirecrackerConfig | None = None) -> Any:
    async def whole() -> Any:
        provider = new_provider(config)
        try:
            return await asyncio.wait_for(action(await create(provider), provider), 120)
        finally:
            await provider.close()

    return asyncio.run(whole())


async def create(provider: MachineProvider) -> MachineSandbox:
    (child,) = await provider.create(await provider.prepare(SPEC, TREE))
    assert isinstance(child, Created), child
    return child.backend


async def sh(sandbox: Any, script: str, timeout_s: float = 30.0) -> ExecResult:
    return await sandbox.exec(ExecRequest(("sh", "-c", script), timeout_s=timeout_s))


async def output(sandbox: Any, script: str) -> str:
    result = await sh(sandbox, script)
    return (result.stdout + result.stderr).decode()


async def forked(sandbox: MachineSandbox) -> MachineSandbox:
    (child,) = await sandbox.fork(1)
    assert isinstance(child, Created), child
    return child.backend


async def heard(sandbox: MachineSandbox, said: bytes) -> None:
    """Wait until a command that runs has been heard to say so."""
    async with asyncio.timeout(20):
        while said not in [reply.body("out") for reply in sandbox.machine.channel._pending.values()]:
            await asyncio.sleep(0.02)
