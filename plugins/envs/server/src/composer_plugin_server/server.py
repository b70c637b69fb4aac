"""A running server: state folder, provider, node, HTTP; and the order in which they come and go.

Orphans of an earlier server are reaped before anything is made. Temporary files of the provider, and of everything it
starts, lie below the scratch folder, which is also how the next server knows them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from importlib import metadata
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web
from attrs import field, frozen

from composer_core.errors import ConfigError, boundary
from composer_core.protocols import Describes, SandboxProvider
from composer_plugin_server import orphans
from composer_plugin_server.config import TOKEN_VARIABLE
from composer_plugin_server.fleet import Fleet
from composer_plugin_server.keeper import Keeper
from composer_plugin_server.ledger import Ledger
from composer_plugin_server.node import Node
from composer_plugin_server.operations import Operations
from composer_plugin_server.settings import Server, Settings
from composer_plugin_server.tokens import read_token
from composer_plugin_server.web import Web

DIST = "composer-plugin-server"
BACKLOG = 8192
END_S = 5.0
"""How long requests under way may take to end when the server does."""
FIXES = {
    errno.EADDRINUSE: "end what listens there, another server perhaps, or take another port: --set server.port=7078",
    errno.EACCES: "ports below 1024 are root's: --set server.port=7077",
}
"""Why it cannot listen -> what helps; for all else it is the address."""


@frozen
class Running:
    """A server that answers."""

    url: str
    node: Node
    token: str = field(repr=False)
    reaped: int
    """Orphans of an earlier server."""


@asynccontextmanager
async def serve(settings: Settings, provider: Callable[[Path], SandboxProvider], plugin: str) -> AsyncIterator[Running]:
    """Serve until the block ends; then everything that was made is destroyed.

    Raises:
        ConfigError: it cannot listen there, has no token, or the provider does not work here.
    """
    tls = _tls(settings.server)
    token = read_token(settings.server.token_file, make=True)
    os.environ.pop(TOKEN_VARIABLE, None)  # no child needs it
    ledger = Ledger.open(Path(settings.server.state), plugin, settings.server.node)
    try:
        with _temporary(ledger.scratch):
            async with (
                _node(settings, provider, plugin, ledger) as (node, reaped),
                _listening(node, token, tls) as url,
            ):
                yield Running(url, node, token, reaped)
        ledger.close()
    finally:
        ledger.abandon()


@asynccontextmanager
async def _node(
    settings: Settings, provider: Callable[[Path], SandboxProvider], plugin: str, ledger: Ledger
) -> AsyncIterator[tuple[Node, int]]:
    async with AsyncExitStack() as stack:
        stack.push_async_callback(orphans.remove, ledger.scratch)
        with boundary("sandboxes", plugin):
            made = provider(ledger.scratch)
        node = Node(made, plugin, settings, ledger)
        stack.push_async_callback(node.close)
        past = ledger.past
        reaped = await orphans.reap(past, made, past.provider == plugin) if past else 0
        ledger.begin()
        with boundary("sandboxes", plugin):
            node.capabilities = await made.probe() | {"sandbox.leases"}
            node.says = made.describe() if isinstance(made, Describes) else ""
        node.figures.counts["orphans_reaped"] += reaped
        yield node, reaped


@asynccontextmanager
async def _listening(node: Node, token: str, tls: ssl.SSLContext | None) -> AsyncIterator[str]:
    wanted = node.settings.server
    operations = Operations(wanted.answers_s, wanted.answers_bytes, wanted.grace_s)
    fleet = Fleet(node, operations, token, metadata.version(DIST))
    site = Web(node, operations, token, dict(fleet.pages()), fleet.open())
    runner = web.AppRunner(
        site.application(), handler_cancellation=True, access_log=None, shutdown_timeout=END_S, keepalive_timeout=75.0
    )
    await runner.setup()
    keeping = asyncio.ensure_future(Keeper(node, operations).run())
    try:
        try:
            await web.TCPSite(runner, wanted.host, wanted.port, ssl_context=tls, backlog=BACKLOG).start()
        except OSError as error:
            where = f"{wanted.host}:{wanted.port}"
            fix = FIXES.get(error.errno or 0, "server.host is an address of this machine, such as 127.0.0.1")
            raise ConfigError("the server cannot listen there", where=where, found=str(error), fix=fix) from error
        host = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
        yield f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}"
    finally:
        node.gate.close()
        keeping.cancel()
        await operations.close()
        await runner.cleanup()
        await fleet.close()
        with suppress(asyncio.CancelledError):
            await keeping


def _tls(server: Server) -> ssl.SSLContext | None:
    """Raises ConfigError where the token would go over a wire that others read."""
    if server.certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(server.certificate, server.key or None)
        except OSError as error:
            raise ConfigError("the certificate cannot be used", where=server.certificate, found=str(error)) from error
        return context
    if not (_loopback(server.host) or server.plain):
        raise ConfigError(
            "others could read the token and what sandboxes hold",
            where="server.host",
            found=f"{server.host}, without HTTPS",
            fix="name server.certificate and server.key, or server.plain = true where a proxy or the wire is trusted",
        )
    return None


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _temporary(folder: Path) -> Iterator[None]:
    """The folder for temporary files, of this process and of those it starts."""
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir, variable = before
        if variable is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = variable
