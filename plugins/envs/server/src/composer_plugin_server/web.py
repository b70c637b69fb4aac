"""HTTP: who may ask, how much, and errors as bodies. Which routes there are stands in `api`.

Nothing of a request is read before its token was compared; bodies are read up to their route's limit. Every error is a
body that says its class, so the client raises what the provider did; what nobody foresaw is an error of the server's
own and tells its name only.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from attrs import define, field

from composer_core.errors import BackendError, ComposerError
from composer_plugin_server import wire
from composer_plugin_server.api import ROUTES, Call, Made, Route
from composer_plugin_server.leases import Lease
from composer_plugin_server.node import Node
from composer_plugin_server.operations import Answer, Operations
from composer_plugin_server.strict import structured
from composer_plugin_server.tokens import same
from composer_plugin_server.wire import KEY_HEADER, LEASE_HEADER, Done, Refused

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
JSON, BYTES = "application/json", "application/octet-stream"
KEY = re.compile(r"[A-Za-z0-9_-]{8,64}")
SAFE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
log = logging.getLogger(__name__)


@define(eq=False)
class Web:
    """The application around a node. `pages` answer without a lease; those in `open` without a token."""

    node: Node
    operations: Operations
    token: str = field(repr=False)
    pages: dict[str, Callable[[web.Request], Awaitable[Answer]]]
    open: frozenset[str]

    def application(self) -> web.Application:
        made = web.Application(middlewares=[self._guard], client_max_size=self.node.settings.server.body_bytes)
        for route in ROUTES:
            made.router.add_route(route.method, f"/{wire.API}{route.path}", self._handler(route))
        made.router.add_route("DELETE", f"/{wire.API}/operations/{{key}}", self._cancel)
        for path, page in self.pages.items():
            made.router.add_get(path, self._page(page))
        return made

    # --- every request --------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticates, and makes a body of every error."""
        try:
            if request.path not in self.open:
                self._authenticate(request)
            return await handler(request)
        except ComposerError as error:
            return _response(_error(error))
        except web.HTTPException as error:
            return _response(_error(Refused(error.reason, status=error.status)))
        except Exception as error:
            log.exception("a request could not be answered")
            return _response(_error(BackendError(f"the server failed: {type(error).__name__}")))

    def _authenticate(self, request: web.Request) -> None:
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not same(given.strip(), self.token):
            raise Refused("the token is missing or wrong", status=401, fix="Authorization: Bearer TOKEN")

    # --- routes ---------------------------------------------------------------------------------------------------

    def _handler(self, route: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            lease = self.node.leases.find(request.headers.get(LEASE_HEADER, "")) if route.leased else None
            body = await _body(request, route) if route.body else None
            call = Call(self.node, lease, body, request.match_info, request.query)
            if not route.keyed:
                return _response(await _answer(route, call))
            assert lease is not None
            key = _key(request.headers.get(KEY_HEADER, ""))
            return _response(await self.operations.once(lease.digest, key, lambda: _answer(route, call)))

        return handle

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        lease: Lease = self.node.leases.find(request.headers.get(LEASE_HEADER, ""))
        self.operations.cancel(lease.digest, _key(request.match_info["key"]))
        return _response(Answer(200, wire.encoded(Done())))

    def _page(self, page: Callable[[web.Request], Awaitable[Answer]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return _response(await page(request))

        return handle


async def _answer(route: Route, call: Call) -> Answer:
    """What the act gives; its errors are answers too, so that a key that is sent again hears of them."""
    try:
        found = await route.act(call)
    except ComposerError as error:
        return _error(error)
    undo = found.undo if isinstance(found, Made) else None
    reply = found.reply if isinstance(found, Made) else found
    if isinstance(reply, bytes):
        return Answer(200, reply, kind=BYTES)
    return Answer(200, wire.encoded(reply), undo)


def _error(error: ComposerError) -> Answer:
    status, body = wire.error_answer(error)
    retry = error.fields.get("retry_after_s")
    headers = (("Retry-After", str(max(1, round(float(retry))))),) if retry is not None else ()
    challenge = (("WWW-Authenticate", "Bearer"),) if status == 401 else ()
    return Answer(status, body, headers=(*headers, *challenge))


def _response(answer: Answer) -> web.Response:
    headers = {**SAFE, **dict(answer.headers), "Content-Type": answer.kind}
    return web.Response(status=answer.status, body=answer.body, headers=headers)


async def _body(request: web.Request, route: Route) -> Any:
    """Raises Refused for what is too large or no JSON, ConfigError for what does not fit."""
    data = await _read(request, route.limit_bytes or request.client_max_size)
    if route.body is bytes:
        return data
    assert route.body is not None
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused("the body is no JSON", found=str(error)[:200], status=400) from error
    return structured(parsed, route.body, "the body")


async def _read(request: web.Request, limit_bytes: int) -> bytes:
    if (request.content_length or 0) > limit_bytes:
        raise _too_large(limit_bytes)
    parts, size = [], 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(limit_bytes: int) -> Refused:
    return Refused("the body is too large", expected=f"at most {limit_bytes} bytes", status=413)


def _key(text: str) -> str:
    if not KEY.fullmatch(text):
        raise Refused(
            f"{KEY_HEADER} must name this request", expected="8 to 64 letters, digits, '-' or '_'", status=400
        )
    return text
