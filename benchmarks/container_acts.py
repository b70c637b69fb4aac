"""Acts of `docker/docker` beside the engine's own commands, for `sandboxes.py`: on one engine, started for this run.

`docker run` and `docker exec` are what people would use instead: the same base image without a network, one process of
the command line each. The engine's exec API without the command line stands beside them, since a client that lives on
would use that. Neither lays out a workspace, caps output or ends what a command leaves behind.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from many_forks import idle

from composer_core.protocols import Created, ExecRequest, SandboxBackend, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_docker.config import DockerConfig
from composer_plugin_docker.provider import DockerProvider
from composer_testing.engines import own_engine

Act = Callable[[], Awaitable[list[float]]]
Timed = Callable[..., Awaitable[list[float]]]
TRUE = ExecRequest(("true",))
SLOW = ("docker first", "docker fork", "docker run")
"""Acts that start a container: a third of the repeats, since two that take the same differ by 7 % in 20 of each."""


@asynccontextmanager
async def container_acts(tree: Tree, timed: Timed, peer: bool, idle_forks: int) -> AsyncIterator[dict[str, Act]]:
    """Names begin with "docker"."""
    with own_engine() as address:
        provider, name = DockerProvider(DockerConfig(engine=address)), f"peer-{secrets.token_hex(4)}"
        try:
            box = await _fresh(provider, tree)
            await box.write("pkg/module_0.py", b"x = 2\n")
            acts = _ours(provider, box, tree, timed)
            acts["docker idle"] = lambda: idle(box, idle_forks)
            if peer:
                acts |= await _engines(provider, address, timed, name)
            yield acts
        finally:
            if peer:
                await provider.engine.remove_container(name)
            await provider.close()


async def _fresh(provider: DockerProvider, tree: Tree) -> SandboxBackend:
    (child,) = await provider.create(await provider.prepare(TemplateSpec(tree.ref, ("python3",)), tree))
    assert isinstance(child, Created), child
    return child.backend


def _ours(provider: DockerProvider, box: SandboxBackend, tree: Tree, timed: Timed) -> dict[str, Act]:
    async def first() -> list[float]:
        return await _timed_and_removed(timed, lambda: _fresh(provider, tree))

    async def fork() -> list[float]:
        async def forked() -> SandboxBackend:
            (child,) = await box.fork(1)  # type: ignore[attr-defined]
            return child.backend  # type: ignore[no-any-return]

        return await _timed_and_removed(timed, forked)

    return {
        "docker first": first,
        "docker fork": fork,
        "docker true": lambda: timed(box.exec(TRUE)),
        "docker changes": lambda: timed(box.changes(1 << 20)),  # type: ignore[attr-defined]
    }


async def _timed_and_removed(timed: Timed, make: Callable[[], Awaitable[SandboxBackend]]) -> list[float]:
    """To the end of the first command; the sandbox is destroyed untimed."""
    made: list[SandboxBackend] = []

    async def whole() -> None:
        made.append(await make())
        await made[0].exec(TRUE)

    spent = await timed(whole())
    await made[0].destroy()
    return spent


async def _engines(provider: DockerProvider, address: str, timed: Timed, peer: str) -> dict[str, Act]:
    engine, numbers = provider.engine, itertools.count()
    found = await engine.call(engine.api.images, filters={"label": "composer.kind=base"})
    image = next(tag for row in found for tag in row["RepoTags"] or () if tag.startswith("composer/base"))

    async def cli(*words: str) -> None:
        null = asyncio.subprocess.DEVNULL
        environment = {"DOCKER_HOST": address, "HOME": "/nonexistent", "PATH": os.environ["PATH"]}
        process = await asyncio.create_subprocess_exec(
            shutil.which("docker") or "docker", *words, stdin=null, stdout=null, env=environment
        )
        assert await process.wait() == 0, words

    await cli("run", "--detach", "--network", "none", "--name", peer, image, "sleep", "86400")

    async def run() -> list[float]:
        name = f"{peer}-{next(numbers)}"
        spent = await timed(cli("run", "--network", "none", "--name", name, image, "true"))
        await engine.remove_container(name)
        return spent

    async def api_exec() -> None:
        made = await engine.call(engine.api.exec_create, peer, ["true"])
        await engine.call(engine.api.exec_start, made["Id"])

    return {
        "docker run": run,
        "docker exec": lambda: timed(cli("exec", peer, "true")),
        "docker api": lambda: timed(api_exec()),
    }
