"""Where a sandbox's root file system comes from: base image, the agent laid over it, a workspace laid over that.

Three layers, each named by what it is made of, so equal content is made once: the *base* (named in the settings, or
imported from this machine) and the base with the agent are kept for all runs; the image with a workspace belongs to
the provider that made it and goes with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import IO

from attrs import frozen

from composer_core.errors import ConfigError, PrepareError
from composer_core.trees import Tree
from composer_plugin_docker import interpreter, programs, tars
from composer_plugin_docker.config import DockerConfig
from composer_plugin_docker.engine import KIND, OWNER, Engine

TEMPLATE = f"{interpreter.HOME}/template"
MOUNTPOINTS = ("/tmp", "/workspace")
PEOPLE = {
    "/etc/passwd": tars.Whole(b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"),
    "/etc/group": tars.Whole(b"root:x:0:\nnogroup:x:65534:\n"),
}
PULL = "docker pull IMAGE on this machine; or leave sandbox.image out: a base is then made of this machine's programs"


@frozen
class Ready:
    """A base image with the agent in it."""

    image: str
    start: tuple[str, ...]
    """Words that start the agent."""
    env: dict[str, str]
    """What the image says of its environment; PATH is always there."""


class Images:
    """Makes the images of one provider; every method may be called again for the same thing at little cost."""

    def __init__(self, engine: Engine, config: DockerConfig) -> None:
        self._engine, self._config = engine, config
        self._making = asyncio.Lock()
        self._made: dict[str, str] = {}
        self._run = secrets.token_hex(8)

    async def ready(self, needs: Iterable[str]) -> Ready:
        """The base with what `needs` names, if it is made here, and the agent."""
        base = await self._base(tuple(sorted(needs)))
        found = await self._engine.image(base)
        if found is None:
            raise PrepareError("the engine has no such image", where=f"sandbox.image = {base!r}", fix=PULL)
        name = f"composer/agent:{_digest(found['Id'], interpreter.identity())}"
        entries, start = await asyncio.to_thread(interpreter.packed)
        async with self._making:
            if await self._engine.image(name) is None:
                layer = tars.archive(entries)
                await self._engine.add_layer(found["Id"], layer, name, {KIND: "base", OWNER: ""})
        env = dict(pair.split("=", 1) for pair in found["Config"].get("Env") or ())
        return Ready(name, tuple(start), {"PATH": programs.SYSTEM, **env})

    async def template(self, ready: Ready, workspace: Tree) -> str:
        """The image that holds a workspace; returns its id."""
        key = _digest(ready.image, workspace.ref.sha256)
        async with self._making:
            if key not in self._made:
                layer = await asyncio.to_thread(tars.archive, tars.of_tree(workspace, TEMPLATE), (TEMPLATE,))
                name, labels = f"composer/template:{key}-{self._run}", self._engine.labels("template")
                try:
                    self._made[key] = await self._engine.add_layer(ready.image, layer, name, labels)
                except asyncio.CancelledError:  # it may have been made nevertheless
                    await self._engine.remove_image(name)
                    raise
            return self._made[key]

    async def close(self) -> None:
        """Remove the images of workspaces. Safe twice."""
        made, self._made = self._made, {}
        await asyncio.gather(*map(self._engine.remove_image, made.values()))

    # --- bases ------------------------------------------------------------------------------------------------

    async def _base(self, needs: tuple[str, ...]) -> str:
        config = self._config
        if sum(map(bool, (config.image, config.rootfs, config.folders))) > 1:
            raise ConfigError("several base images are named", expected="one of sandbox.image, .rootfs and .folders")
        if config.image:
            return config.image
        if config.rootfs:
            return await self._imported(await asyncio.to_thread(_of_rootfs, config.rootfs))
        return await self._imported(await asyncio.to_thread(_of_here, needs, config.folders))

    async def _imported(self, source: _Source) -> str:
        name = f"composer/base:{source.identity}"
        async with self._making:
            if await self._engine.image(name) is None:
                with tempfile.TemporaryFile() as file:
                    await asyncio.to_thread(source.write, file)
                    file.seek(0)
                    await self._engine.import_image(file, name)
        return name


@frozen
class _Source:
    """Paths of this machine to import, relative to `root` in a sandbox, and small files beside them."""

    root: str
    paths: tuple[str, ...]
    beside: tars.Entries
    identity: str

    def write(self, file: IO[bytes]) -> None:
        tars.write_paths(file, self.root, self.paths, self.beside, MOUNTPOINTS)


def _of_rootfs(folder: str) -> _Source:
    root = os.path.abspath(folder)
    if not os.path.isdir(root):
        raise ConfigError("there is no such folder", where=f"sandbox.rootfs = {folder!r}")
    paths = tuple(sorted(str(path) for path in Path(root).rglob("*")))
    return _Source(root, paths, {}, _identity(root, paths))


@cache
def _of_here(needs: tuple[str, ...], folders: tuple[str, ...]) -> _Source:
    wrong = [folder for folder in folders if not (folder.startswith("/") and os.path.isdir(folder))]
    if wrong:
        raise ConfigError("there is no such folder", where="sandbox.folders", found=", ".join(wrong))
    chosen = programs.found(needs)
    paths = tuple(programs.closure(list(chosen.values()), folders))
    outside = programs.outside(chosen)
    beside: tars.Entries = {**PEOPLE, **{path: _reached(target) for path, target in outside.items()}}
    return _Source(
        "/", paths, beside, _identity("/", paths, repr(sorted(PEOPLE.items())), repr(sorted(outside.items())))
    )


def _reached(program: str) -> tars.Whole | tars.Link:
    """A link to a program that is taken along; what would lie below a mount point, itself."""
    if program.startswith(tuple(f"{place}/" for place in MOUNTPOINTS)):
        return tars.Whole(Path(program).read_bytes(), executable=True)
    return tars.Link(program)


def _identity(root: str, paths: tuple[str, ...], *more: str) -> str:
    """By names, sizes, modes and times of change: reading hundreds of megabytes at each start would cost seconds."""
    rows = [root, *more]
    for path in paths:
        info = os.lstat(path)
        rows.append(f"{path}\0{info.st_mode}\0{info.st_size}\0{info.st_mtime_ns}")
    return _digest(*rows)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]
