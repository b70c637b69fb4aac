"""What the tests of machines share: one provider for the acts of a module, and shell commands in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from composer_core.protocols import Created, ExecRequest, ExecResult, Failed, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_microvm.config import FirecrackerConfig, QemuConfig
from composer_plugin_microvm.firecracker_driver import FirecrackerDriver
from composer_plugin_microvm.machine import Machine
from composer_plugin_microvm.provider import MachineProvider
from composer_plugin_microvm.qemu_driver import QemuDriver
from composer_plugin_microvm.sandbox import MachineSandbox

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n"})
SPEC = TemplateSpec(TREE.ref, file_bytes=1 << 20, disk_bytes=8 << 20, memory_bytes=128 << 20, processes=24)
Act = Callable[[MachineSandbox, MachineProvider], Awaitable[Any]]
Config = QemuConfig | FirecrackerConfig
_SHARED: dict[Config, tuple[asyncio.Runner, MachineProvider]] = {}


def new_provider(config: Config | None = None) -> MachineProvider:
    settings = config or QemuConfig()
    if isinstance(settings, FirecrackerConfig):
        return MachineProvider(settings, FirecrackerDriver(settings))
    return MachineProvider(settings, QemuDriver(settings))


def act(action: Act, config: Config | None = None, fresh: bool = False) -> Any:
    """Run `action` with a sandbox and its provider, which other acts of equal settings share unless it is `fresh`."""
    settings = config or QemuConfig()
    if settings not in _SHARED:
        _SHARED[settings] = asyncio.Runner(), new_provider(settings)
    runner, provider = _SHARED.pop(settings)
    try:
        found = runner.run(_act(action, provider))
    except BaseException:
        fresh = True
        raise
    finally:
        if fresh:
            _close(runner, provider)
        else:
            _SHARED[settings] = runner, provider
    return found


async def _act(action: Act, provider: MachineProvider) -> Any:
    try:
        return await asyncio.wait_for(action(await create(provider), provider), 120)
    finally:
        await asyncio.gather(*(one.destroy() for one in list(provider._live.values())))


def _close(runner: asyncio.Runner, provider: MachineProvider) -> None:
    with runner:
        runner.run(provider.close())


def close_shared() -> None:
    while _SHARED:
        _close(*_SHARED.popitem()[1])


async def create(provider: MachineProvider) -> MachineSandbox:
    (child,) = await provider.create(await provider.prepare(SPEC, TREE))
    assert isinstance(child, Created), child
    return child.backend


async def given_up(making: Coroutine[Any, Any, list[Created | Failed]], moment: Awaitable[Any]) -> bool:
    """Cancel what makes sandboxes at a moment, and destroy what it had made before; whether it was under way."""
    task = asyncio.ensure_future(making)
    await moment
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return True
    await asyncio.gather(*(child.backend.destroy() for child in task.result() if isinstance(child, Created)))
    return False


def adopting(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a machine was started and is being told who it is: the middle of a creation, on any machine."""
    adopt, reached = Machine.adopt, asyncio.Event()

    async def noted(self: Machine, running: bool = False) -> None:
        reached.set()
        await adopt(self, running)

    monkeypatch.setattr(Machine, "adopt", noted)
    return reached


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
