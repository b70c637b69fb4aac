"""The provider's end of a keeper: starts it, numbers requests, matches replies, and says when it is gone.

A dead keeper means that every sandbox it held is gone with it: each pending and later request raises
SandboxUnreachable, of which a sandbox's `destroy` makes nothing, since that is all it asked for.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from composer_core.errors import (
    BackendError,
    ConfigError,
    NoCapacity,
    PathError,
    QuotaError,
    SandboxError,
    SandboxGone,
    SandboxUnreachable,
    TemplateMissing,
)
from composer_envkit import Network, agent
from composer_envkit.agent import frames
from composer_envkit.agent.words import COMMANDS
from composer_plugin_local.keeper import wire

ERRORS: dict[str, type[SandboxError]] = {
    "path": PathError,
    "quota": QuotaError,
    "gone": SandboxGone,
    "missing": TemplateMissing,
    "capacity": NoCapacity,
    "backend": BackendError,
}
FIX = (
    "install bubblewrap (apt install bubblewrap) and allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "or a container started with --privileged); or choose sandbox.use = 'local/process', which isolates nothing and "
    "wants sandbox.trusted = true"
)
START = "import sys; sys.path += {roots!r}; from composer_plugin_local.keeper.start import main; main()"
STOP_S = 5.0
Undo = Callable[[dict[str, Any]], Awaitable[None]]


class Keeper(asyncio.Protocol):
    """One keeper process and the requests under way."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.counts_memory = False
        """Whether control groups limit what all processes of a command take together."""
        self.networks: dict[str, Network] = {}
        """Of sandboxes that were ever allowed one, by id."""
        self._transport: asyncio.Transport | None = None
        self._decoder = frames.Decoder(wire.MAX_HEADER)
        self._pending: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._number = 0
        self._lost: str | None = None
        self._unwanted: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, settings: dict[str, Any]) -> Keeper:
        """Raises ConfigError when this machine cannot offer the namespaces."""
        self = cls()
        try:
            header = await self._begin(settings)
        except SandboxUnreachable as error:
            found = await self._last_words()
            await self.close()
            raise ConfigError("sandboxes of local/namespaces cannot be made here", found=found, fix=FIX) from error
        except asyncio.CancelledError:
            await self.close()
            raise
        self.counts_memory = header["limits"] == "cgroups"
        return self

    async def _begin(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What the keeper says first."""
        ours, theirs = socket.socketpair()
        roots = [str(Path(file).resolve().parents[up]) for file, up in ((__file__, 1), (agent.__file__, 2))]
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[tuple[dict[str, Any], bytes]] = loop.create_future()
        self._pending[0] = ready
        try:
            with theirs:
                arguments = json.dumps({**settings, "socket": theirs.fileno()})
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", "-B", "-c", START.format(roots=roots), arguments,
                    stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, pass_fds=[theirs.fileno()],
                    start_new_session=True, cwd="/", env={"LANG": "C.UTF-8"},
                )  # fmt: skip
            await loop.create_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise
        header, _ = await ready
        return header

    async def _last_words(self) -> str:
        assert self.process is not None and self.process.stderr is not None
        text = (await self.process.stderr.read(4096)).decode(errors="replace").strip()
        return text or "the keeper ended without a word"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for header, body in self._decoder.feed(data):
            future = self._pending.pop(header["n"], None)
            if future is not None and not future.done():
                future.set_result((header, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._lost or "the keeper of local/namespaces has died, and its sandboxes with it"
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(SandboxUnreachable(self._lost))

    async def ask(self, op: str, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """One request and its reply; a cancelled caller's command is ended, and any reply dropped when it comes."""
        if self._lost or self._transport is None:
            raise SandboxUnreachable(self._lost or "the keeper was not started")
        number = self._send(op, data, **fields)
        future: asyncio.Future[tuple[dict[str, Any], bytes]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            header, body = await future
        except asyncio.CancelledError:
            self._pending.pop(number, None)
            if op in COMMANDS and not self._lost:
                self._send("kill", id=fields["id"], number=number)
            elif op == "pause" and not self._lost:
                self._send("resume", id=fields["id"])
            raise
        if "error" in header:
            raise ERRORS[header["error"]](header["message"])
        return header, body

    def _send(self, op: str, data: bytes = b"", **fields: Any) -> int:
        """The request's number."""
        assert self._transport is not None
        self._number += 1
        self._transport.write(frames.encode({"n": self._number, "op": op, **fields}, data))
        return self._number

    async def make(self, op: str, **fields: Any) -> list[dict[str, str]]:
        """Rows of the sandboxes that a request makes; they are destroyed if its caller is cancelled before."""
        rows: list[dict[str, str]] = (await self._made(self._destroy, op, **fields))["children"]
        return rows

    async def snapshot(self, sandbox_id: str) -> str:
        """Its id; it is released if the caller is cancelled before."""
        return str((await self._made(self._release, "snapshot", id=sandbox_id))["id"])

    async def _made(self, undo: Undo, op: str, **fields: Any) -> dict[str, Any]:
        """What is said of what a request makes; `undo` is told the same where nobody wants it any more."""
        making = asyncio.ensure_future(self.ask(op, **fields))
        try:
            header, _ = await asyncio.shield(making)
        except asyncio.CancelledError:
            ending = asyncio.ensure_future(self._unmake(undo, making))
            self._unwanted.add(ending)
            ending.add_done_callback(self._unwanted.discard)
            raise
        return header

    async def _unmake(self, undo: Undo, making: asyncio.Future[tuple[dict[str, Any], bytes]]) -> None:
        with suppress(SandboxError):  # a keeper that is gone has taken it along
            await undo((await making)[0])

    async def _destroy(self, made: dict[str, Any]) -> None:
        for row in made["children"]:
            if "id" in row:
                await self.ask("destroy", id=row["id"])

    async def _release(self, made: dict[str, Any]) -> None:
        await self.ask("release", id=made["id"])

    def network(self, sandbox_id: str) -> Network:
        async def ask(op: str, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
            return await self.ask(op, data, id=sandbox_id, **fields)

        return self.networks.setdefault(sandbox_id, Network(ask))

    async def leave_network(self, sandbox_id: str) -> None:
        network = self.networks.pop(sandbox_id, None)
        if network is not None:
            await network.close()

    async def close(self) -> None:
        """End the keeper; the kernel removes everything it held. Safe twice."""
        self._lost = self._lost or "the provider was closed"
        if self._transport is not None:
            self._transport.close()
        await asyncio.gather(*self._unwanted)
        for sandbox_id in list(self.networks):
            await self.leave_network(sandbox_id)
        process, self.process = self.process, None
        if process is None:
            return
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # the stderr pipe's transport has no public close
