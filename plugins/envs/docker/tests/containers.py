"""What the tests of this folder share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import docker

from composer_core.protocols import Created, ExecRequest, ExecResult, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_docker.config import DockerConfig
from composer_plugin_docker.provider import DockerProvider
from composer_plugin_docker.sandbox import DockerSandbox

TREE = Tree.of({"a.txt": "one\n", "pkg/b.txt": "two\n", "pkg/deep/c.txt": "three\n"})
SPEC = TemplateSpec(TREE.ref, ("python3",), processes=24, disk_bytes=8 << 20, memory_bytes=128 << 20)
Act = Callable[[DockerSandbox, DockerProvider], Awaitable[Any]]


_shared: list[tuple[asyncio.Runner, DockerProvider]] = []
"""Of the acts of a module, at most one."""


def act(action: Act, spec: TemplateSpec = SPEC, config: DockerConfig | None = None, fresh: bool = False) -> Any:
    """Run `action(sandbox, provider)` in a fresh sandbox, of the module's provider or of one of its own."""
    own = fresh or config is not None
    if own or not _shared:
        runner, provider = asyncio.Runner(), DockerProvider(config)
    else:
        runner, provider = _shared.pop()
    try:
        found = runner.run(_act(action, provider, spec))
    except BaseException:
        own = True
        raise
    finally:
        if own:
            _close(runner, provider)
        else:
            _shared.append((runner, provider))
    return found


async def _act(action: Act, provider: DockerProvider, spec: TemplateSpec) -> Any:
    try:
        return await asyncio.wait_for(action(await create(provider, spec), provider), 90)
    finally:
        await asyncio.gather(*(one.destroy() for one in list(provider._live.values())))


def _close(runner: asyncio.Runner, provider: DockerProvider) -> None:
    with runner:
        runner.run(provider.close())


def close_shared() -> None:
    while _shared:
        _close(*_shared.pop())


async def create(provider: DockerProvider, spec: TemplateSpec = SPEC) -> DockerSandbox:
    (child,) = await provider.create(await provider.prepare(spec, TREE))
    assert isinstance(child, Created) and isinstance(child.backend, DockerSandbox), child
    return child.backend


async def sh(sandbox: DockerSandbox, script: str, timeout_s: float = 20.0) -> ExecResult:
    return await sandbox.exec(ExecRequest(("sh", "-c", script), timeout_s=timeout_s))


def run(script: str, timeout_s: float = 20.0) -> ExecResult:
    async def action(sandbox: DockerSandbox, provider: DockerProvider) -> ExecResult:
        result = await sh(sandbox, script, timeout_s)
        assert (await sh(sandbox, "echo alive")).stdout == b"alive\n", "the sandbox did not outlive the command"
        return result

    found: ExecResult = act(action)
    return found


def output(script: str) -> str:
    result = run(script)
    return (result.stdout + result.stderr).decode()


def commands_on_this_machine() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def things() -> tuple[set[str], set[str], set[str]]:
    """Containers, images and volumes of the engine."""
    api = docker.from_env().api
    try:
        containers = {row["Id"] for row in api.containers(all=True)}
        volumes = {row["Name"] for row in api.volumes()["Volumes"] or ()}
        return containers, {row["Id"] for row in api.images(all=True)}, volumes
    finally:
        api.close()
