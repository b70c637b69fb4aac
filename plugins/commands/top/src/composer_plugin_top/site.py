"""The live page: three files that are the same for everybody, and the latest picture as JSON.

Served on loopback only, for reading only. It has no token, since whoever may connect to this machine's loopback sees
counts and names of tasks and nothing else; a page of another origin cannot read it, because a name that is not
loopback's own is refused (DNS rebinding) and nothing is shared across origins. For another machine, forward the port.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

from aiohttp import web
from attrs import define

from composer_core.errors import ConfigError
from composer_plugin_top.watch import Watch, unknown

HOST = "127.0.0.1"
EVERY_S = 1.0
ASSETS = {
    "/": ("top.html", "text/html"),
    "/top.js": ("top.js", "text/javascript"),
    "/top.css": ("top.css", "text/css"),
}
NAMES = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
SAFE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@define(eq=False)
class Site:
    """One run's page. The folder is read once a second on a thread, however many look."""

    watch: Watch
    picture: dict[str, Any]

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                self.picture = await asyncio.to_thread(self.watch.look)
            except Exception as error:  # the page must not go on showing old figures as if they were new
                self.picture = {**self.picture, **unknown(f"looking at it failed: {type(error).__name__}: {error}")}

    def application(self) -> web.Application:
        made = web.Application(middlewares=[_guard])
        for path, (name, kind) in ASSETS.items():
            made.router.add_get(path, _asset(name, kind))
        made.router.add_get("/figures", self._figures)
        return made

    async def _figures(self, request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(self.picture), content_type="application/json")


@web.middleware
async def _guard(request: web.Request, handler: Any) -> web.StreamResponse:
    if not NAMES.fullmatch(request.headers.get("Host", "")):
        reply: web.StreamResponse = web.Response(
            status=403, text="this page is served under loopback's own names only\n"
        )
    else:
        try:
            reply = await handler(request)
        except web.HTTPException as error:
            reply = web.Response(status=error.status, text=f"{error.reason}\n")
    reply.headers.update(SAFE)
    return reply


def _asset(name: str, kind: str) -> Any:
    text = files("composer_plugin_top").joinpath("assets", name).read_text(encoding="utf-8")

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind)

    return answer


@asynccontextmanager
async def serve(watch: Watch, port: int) -> AsyncIterator[str]:
    """Serve until the block ends; gives the page's address.

    Raises:
        ConfigError: the port is taken.
    """
    site = Site(watch, await asyncio.to_thread(watch.look))
    runner = web.AppRunner(site.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    looking = asyncio.create_task(site.keep_looking())
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            fix = "name another port, or 0 for any that is free"
            raise ConfigError(
                "the page cannot be served there", where=f"{HOST}:{port}", found=str(error), fix=fix
            ) from error
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        await runner.cleanup()
