"""The client's end of one server: a lease kept alive, requests that survive a lost connection, errors as they were.

Creations wait in the server's queue, each on a connection, and heartbeats must never wait behind them; so creations
have a pool of connections of their own, and everything else another. A request that changes something carries a key:
sent again after a lost connection it gets the first answer. A caller that is cancelled tells the server so.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import secrets
import socket
import time
from contextlib import suppress
from typing import Any, TypeVar

import aiohttp
from attrs import define, field

from composer_core.errors import BackendError, ComposerError, SandboxGone, SandboxUnreachable
from composer_plugin_server import wire
from composer_plugin_server.config import RemoteConfig
from composer_plugin_server.strict import structured
from composer_plugin_server.wire import KEY_HEADER, LEASE_HEADER, ErrorReply, LeaseGone, NodeReply

T = TypeVar("T")
RETRY_S = 10.0
"""A server that was not heard of for so long, on any connection, is given up; one that is busy answers somebody."""
TRIES = 4
"""Sent at least so often: a client that was busy itself must not take that for the server's silence."""
PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""First and longest pause before a request is sent again; they double."""
CONNECT_S = 30.0
"""How long a connection may take to be made; thousands at once stand in the kernel's line."""
BEATS = 4
"""Heartbeats in the time of a lease."""
UNANSWERED = 2
"""Of them in a row, each waited for as long as two may take, after which a server is given up."""
ALIVE_S = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5}
"""When a connection on which nothing is said is first looked at, and how often then: a command may say nothing for an
hour, and its wire be dead while heartbeats go well on another."""
DEAD_S = 30
"""A connection whose other end has acknowledged nothing for so long is lost."""
LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)


@define(eq=False)
class Connection:
    """For one event loop; opened by its first request."""

    url: str
    token: str = field(repr=False)
    config: RemoteConfig
    lease: str = field(default="", repr=False)
    node: str = ""
    provider: str = ""
    capabilities: frozenset[str] = frozenset()
    load: float = 0.0
    says: str = ""
    closed: bool = False
    _calls: aiohttp.ClientSession | None = None
    _starts: aiohttp.ClientSession | None = None
    _opening: asyncio.Lock = field(factory=asyncio.Lock)
    _beating: asyncio.Task[None] | None = None
    _telling: set[asyncio.Task[None]] = field(factory=set)
    _heard_s: float = 0.0
    _unanswered: int = 0
    """Heartbeats since anything was heard."""

    # --- requests -------------------------------------------------------------------------------------------------

    async def ask(
        self,
        method: str,
        path: str,
        reply: type[T],
        body: Any = None,
        *,
        keyed: bool = False,
        leased: bool = True,
        starts: bool = False,
        query: dict[str, str] | None = None,
    ) -> T:
        """One request, sent again if its connection is lost.

        Raises:
            SandboxError: what the server raised.
            SandboxUnreachable: it answered nobody for `RETRY_S`.
        """
        key = secrets.token_urlsafe(12) if keyed else ""
        headers = {KEY_HEADER: key} if keyed else {}
        if leased:
            headers[LEASE_HEADER] = await self._leased()
        data = body if isinstance(body, bytes) or body is None else wire.encoded(body)
        try:
            status, found = await self._sent(method, path, headers, data, query, starts)
        except asyncio.CancelledError:
            if keyed:
                self._give_up(key, headers)
            raise
        return _reply(status, found, reply)

    async def _sent(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        data: bytes | None,
        query: dict[str, str] | None,
        starts: bool,
    ) -> tuple[int, bytes]:
        """Status and body."""
        started_s, pause_s = time.monotonic(), PAUSE_S
        for tries in itertools.count(1):
            calls, creations = self._sessions()
            session = creations if starts else calls
            try:
                address = f"{self.url.rstrip('/')}/{wire.API}{path}"
                async with session.request(
                    method,
                    address,
                    headers=headers,
                    data=data and io.BytesIO(data),
                    params=query,
                    allow_redirects=False,
                ) as reply:
                    found = reply.status, await reply.read()
                    self._heard_s, self._unanswered = time.monotonic(), 0
                    return found
            except LOST as error:
                if self.closed:
                    raise SandboxGone("the provider was closed") from None
                silent_s = time.monotonic() + pause_s - max(started_s, self._heard_s)
                if silent_s > RETRY_S and (tries >= TRIES or self._unanswered >= UNANSWERED):
                    fix = "is composer-run envd running there?"
                    raise SandboxUnreachable(
                        "the environment server does not answer", where=self.url, found=str(error), fix=fix
                    ) from None  # that is all there is to tell: what lies below is aiohttp's
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise AssertionError("not reached")

    def _sessions(self) -> tuple[aiohttp.ClientSession, aiohttp.ClientSession]:
        if self.closed:
            raise SandboxGone("the provider was closed")
        if self._calls is None or self._starts is None:
            self._calls, self._starts = self._session(0), self._session(self.config.starts)
        return self._calls, self._starts

    def _session(self, most: int) -> aiohttp.ClientSession:
        """Times are the server's to keep: it knows when a command's is over."""
        connector = aiohttp.TCPConnector(limit=most, limit_per_host=most, socket_factory=_watched)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/octet-stream"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        return aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout, trust_env=False)

    def _give_up(self, key: str, headers: dict[str, str]) -> None:
        """Tell the server that nobody waits for the answer."""

        async def tell() -> None:
            with suppress(ComposerError):
                await self._sent("DELETE", f"/operations/{key}", headers, None, None, False)

        task = asyncio.get_running_loop().create_task(tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    # --- the lease ------------------------------------------------------------------------------------------------

    async def _leased(self) -> str:
        if not self.lease:
            async with self._opening:
                if not self.lease:
                    await self._open()
        return self.lease

    async def _open(self) -> None:
        described = await self.ask("GET", "/node", NodeReply, leased=False)
        self._told(described)
        lease = self.config.lease
        if not lease:
            request = wire.LeaseRequest(self.config.lease_s, self.config.group, f"{socket.gethostname()} {os.getpid()}")
            lease = (await self.ask("POST", "/leases", wire.LeaseReply, request, leased=False)).lease
        self.lease = lease
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    def _told(self, reply: NodeReply) -> None:
        self.node, self.provider, self.load, self.says = reply.node, reply.provider, reply.load, reply.says
        self.capabilities = frozenset(reply.capabilities)

    async def known(self) -> None:
        """Make sure that name and capabilities are there."""
        await self._leased()

    async def _beat(self) -> None:
        """Keep the lease; one that is gone is opened anew by whoever needs it.

        A command may take its time, so no other request has a limit: a wire that went dead without a word, or a server
        that stands still, shows here alone.
        """
        every_s = self.config.lease_s / BEATS
        while True:
            await asyncio.sleep(every_s)
            with suppress(SandboxUnreachable):
                try:
                    async with asyncio.timeout(2 * every_s):
                        self._told(await self.ask("PUT", "/lease", NodeReply))
                except LeaseGone:
                    self.forget()
                except TimeoutError:
                    if time.monotonic() - self._heard_s > 2 * every_s:
                        self._unanswered += 1
                        await self._hang_up()

    async def _hang_up(self) -> None:
        """Whoever waits on a connection finds it lost, and sends again on another."""
        sessions, self._calls, self._starts = (self._calls, self._starts), None, None
        for session in filter(None, sessions):
            await session.close()

    def forget(self) -> None:
        """The lease is gone, and what it held with it: the next creation opens another."""
        if not self.config.lease:
            self.lease = ""

    async def close(self) -> None:
        """End the lease, unless it is another's; safe twice."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        await asyncio.gather(*self._telling, return_exceptions=True)
        try:
            if self.lease and not self.config.lease and not self.closed:
                with suppress(LeaseGone):
                    await self.ask("DELETE", "/lease", wire.Done)
        finally:
            self.closed = True
            await self._hang_up()


def _watched(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that the kernel keeps an eye on, as far as this system's can."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**ALIVE_S, "TCP_USER_TIMEOUT": DEAD_S * 1000}.items():
        if option := getattr(socket, name, None):
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _reply(status: int, found: bytes, reply: type[T]) -> T:
    if status == 200 and reply is bytes:
        return found  # type: ignore[return-value]
    try:
        data = json.loads(found)
    except ValueError as error:
        text = found[:200].decode(errors="replace")
        raise BackendError("what answers is no environment server", found=f"status {status}, {text!r}") from error
    if status != 200:
        raise wire.error_of(structured(data, ErrorReply, "the server's answer"))
    return structured(data, reply, "the server's answer")
