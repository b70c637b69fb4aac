"""A sandbox's way out: the host's end of what `agent.relay` does in the sandbox, with a proxy behind it.

The sandbox has no network but its loopback. A port of that leads, over the line that the backend has to its agent
anyway, to a proxy in this process, which lets through what is allowed and says no to all else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from composer_core.errors import SandboxError
from composer_envkit.agent.relay import PIECE_BYTES, PORT
from composer_envkit.proxy import Proxy

MOST = 64
"""Connections of one sandbox that are served at once; more wait."""
NAMES = ("http_proxy", "https_proxy")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""What names the sandbox itself, unless the list says that a host of that name may be reached."""
Ask = Callable[..., Awaitable[tuple[Mapping[str, Any], bytes]]]


class Network:
    """One sandbox's; nothing is allowed until something is. For one event loop."""

    def __init__(self, ask: Ask) -> None:
        """`ask(op, data, **fields)` asks the agent, however long it takes; raises OSError or SandboxError."""
        self.proxy = Proxy()
        self._ask = ask
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Of commands, while anything is allowed."""
        if not self.proxy.rules:
            return {}
        own = [name for name in LOOPBACK if not any(rule.takes(name, rule.port or 1) for rule in self.proxy.rules)]
        found = {**dict.fromkeys(NAMES, f"http://127.0.0.1:{PORT}"), "no_proxy": ",".join(own)}
        return found | {name.upper(): value for name, value in found.items()}

    async def allow(self, allow: Sequence[str]) -> None:
        """Raises BackendError for what is no entry, or where what runs in the sandbox holds the port."""
        self.proxy.allow(allow)
        rules = self.proxy.rules
        try:
            if rules:
                await self._listens()
        except BaseException:
            if self.proxy.rules is rules:  # nobody has said otherwise meanwhile
                self.proxy.allow(())
            raise

    async def _listens(self) -> None:
        """Asked for once, whoever comes while it is under way, or gives up: a port can be had once."""
        asked = self._listening
        if asked is None or (asked.done() and (asked.cancelled() or asked.exception())):
            asked = self._listening = self._start(self._listen())
            asked.add_done_callback(lambda task: task.cancelled() or task.exception())  # who asked may have given up
        await asyncio.shield(asked)

    async def _listen(self) -> None:
        await self._ask("relay", act="listen")
        self._start(self._accept())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        """Until the sandbox is no more."""
        places = asyncio.Semaphore(MOST)

        async def serve(peer: _Peer) -> None:
            try:
                await self.proxy.serve(peer)
            finally:
                places.release()

        with suppress(OSError, SandboxError):
            while True:
                await places.acquire()
                header, _ = await self._ask("relay", act="accept")
                if "peer" not in header:
                    return
                self._start(serve(_Peer(self._ask, header["peer"])))

    async def close(self) -> None:
        """Once the sandbox can no longer be asked. Safe twice."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Peer:
    """A `proxy.Stream` whose other end is in a sandbox."""

    def __init__(self, ask: Ask, peer: int) -> None:
        self._ask, self._peer = ask, peer

    async def _does(self, act: str, data: bytes = b"") -> bytes:
        try:
            header, body = await self._ask("relay", data, act=act, peer=self._peer)
        except SandboxError as error:
            raise ConnectionResetError(error.message) from error
        if header.get("closed"):
            raise BrokenPipeError("nobody listens")
        return body

    async def read(self) -> bytes:
        return await self._does("read")

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            await self._does("write", data[start : start + PIECE_BYTES])

    async def shut(self) -> None:
        await self._does("shut")

    async def close(self) -> None:
        with suppress(OSError):
            await self._does("close")
