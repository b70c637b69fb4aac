"""A node's environment server: `composer-run envd` as a child process, so that a node's sandboxes outlive its workers.

It serves the run's own sandbox, with the settings of the run file, on the loopback address alone; workers of its node
reach it through `server/remote`. A server that dies is started anew at the same address; what ran in its sandboxes is
lost, and `life` tells a worker so. The child gets SIGTERM when its parent dies, however that comes. No Ray here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from composer_core.errors import ComposerError
from composer_plugin_ray.blueprint import Blueprint
from composer_plugin_ray.line import portable
from composer_plugin_ray.restarts import Restarts

TOKEN = "COMPOSER_ENVD_TOKEN"
READY = re.compile(r" at (http\S+), node ")
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


@frozen
class Environment:
    """How to reach a server."""

    url: str
    token: str
    pid: int

    def sandbox(self) -> Mapping[str, Any]:
        """The run file's [sandbox] of a worker on that node. What the sandbox offers was probed by the controller."""
        return {"use": "server/remote", "urls": [self.url], "needs": []}


class EnvironmentServer:
    """One server and its restarts."""

    def __init__(self, blueprint: Blueprint, restarts: int, timeout_s: float) -> None:
        self._sandbox, self._timeout_s = dict(blueprint.config["sandbox"]), timeout_s
        self._restarts = Restarts(restarts)
        self._token, self._port, self._lives = secrets.token_urlsafe(32), 0, 0
        self._state = tempfile.mkdtemp(prefix="composer-envd-")
        self._broken: Exception | None = None
        self._up = asyncio.Event()

    async def start(self) -> None:
        await self._spawn()
        self._watch = asyncio.create_task(self._keep())

    async def environment(self) -> Environment:
        """As it is now."""
        await self.life()
        return Environment(self._url, self._token, self._child.pid)

    async def life(self) -> int:
        """How many times a server was started; waits while one is on its way.

        Raises:
            ComposerError: it was started too often.
        """
        if self._child.returncode is not None:
            self._up.clear()
        await self._up.wait()
        if self._broken:
            raise self._broken
        return self._lives

    async def _spawn(self) -> None:
        argv = [sys.executable, "-m", "composer_core.cli", "--plugins", self._sandbox["use"].partition("/")[0], "envd"]
        own = {"server.port": self._port, "server.state": self._state, "server.host": "127.0.0.1"}
        settings = {**dict(flat("sandbox", self._sandbox)), **own}
        argv += [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        self._child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, TOKEN: self._token, "PYTHONUNBUFFERED": "1"},
            preexec_fn=_die_with_parent,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                self._url = await self._ready()
        except TimeoutError as error:
            raise ComposerError("an environment server was not ready in time", who="ray/ray") from error
        self._port = int(self._url.rpartition(":")[2])
        self._lives += 1
        self._up.set()

    async def _ready(self) -> str:
        said = b""
        assert self._child.stdout
        async for line in self._child.stdout:
            said += line
            if found := READY.search(line.decode("utf-8", "replace")):
                return found[1]
        raise ComposerError("an environment server did not start", who="ray/ray", found=said.decode("utf-8", "replace"))

    async def _keep(self) -> None:
        """Start anew what dies; what it says is read so that it never waits for us."""
        while True:
            assert self._child.stdout
            while await self._child.stdout.read(1 << 16):
                pass
            code = await self._child.wait()
            self._up.clear()
            try:
                self._restarts.spend(ComposerError(f"an environment server ended with status {code}"))
                await self._spawn()
            except Exception as error:  # whoever waits for a life would wait for ever
                self._broken = portable(error)
                return self._up.set()

    async def close(self) -> None:
        """Its sandboxes are destroyed by the server, which is given the time for it."""
        self._watch.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()
        await self._child.communicate()
        shutil.rmtree(self._state, ignore_errors=True)


def _die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys of a table; what is not set is left out."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from flat(f"{name}.{key}", entry)
    elif value is not None:
        yield name, value
