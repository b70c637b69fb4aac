"""What the page is made of: its files, and the figures of this node and of others it was told of.

The files are the same for everybody and hold nothing; the figures need the token. Other nodes are asked by this
server, so that a browser has to reach only one, and a node that does not answer is shown as such.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any

import aiohttp
from aiohttp import web
from attrs import asdict, define, field

from composer_plugin_server import wire
from composer_plugin_server.figures import STATES
from composer_plugin_server.keeper import states
from composer_plugin_server.metrics import TYPE, Metrics
from composer_plugin_server.node import Node
from composer_plugin_server.openapi import document
from composer_plugin_server.operations import Answer, Operations

ASSETS = {
    "/": ("fleet.html", "text/html"),
    "/fleet.js": ("fleet.js", "text/javascript"),
    "/fleet.css": ("fleet.css", "text/css"),
}
OTHER_S = 3.0
"""How long another node may take to answer."""
OTHER_BYTES = 4 << 20
CLIENTS = 100
"""Clients in the figures, those with most sandboxes first."""


@define(eq=False)
class Fleet:
    node: Node
    operations: Operations
    token: str = field(repr=False)
    version: str
    _session: aiohttp.ClientSession | None = None
    _assets: dict[str, Answer] = field(factory=dict)

    def pages(self) -> Mapping[str, Any]:
        """Path -> what answers it."""
        metrics = Metrics(self.node)

        async def prometheus(request: web.Request) -> Answer:
            return Answer(200, metrics.text(), kind=TYPE)

        async def openapi(request: web.Request) -> Answer:
            return Answer(200, json.dumps(document(self.version)).encode())

        async def health(request: web.Request) -> Answer:
            return Answer(200, b'{"ok":true}')

        assets = {path: self._asset(*found) for path, found in ASSETS.items()}
        own = {"/metrics": prometheus, "/openapi.json": openapi, "/health": health, "/v1/fleet": self._figures}
        return {**assets, **own}

    @staticmethod
    def open() -> frozenset[str]:
        """Paths that hold nothing and need no token."""
        return frozenset({*ASSETS, "/openapi.json", "/health"})

    def _asset(self, name: str, kind: str) -> Any:
        text = files("composer_plugin_server").joinpath("assets", name).read_bytes()

        async def answer(request: web.Request) -> Answer:
            return Answer(200, text, kind=f"{kind}; charset=utf-8")

        return answer

    async def _figures(self, request: web.Request) -> Answer:
        since = request.query.get("since", "0")
        since_s = float(since) if since.replace(".", "", 1).isdigit() else 0.0
        own = self.figures(since_s)
        others = [] if "alone" in request.query else self.node.settings.server.nodes
        found = await asyncio.gather(*(self._other(url, since) for url in others))
        return Answer(200, json.dumps({"states": STATES, "nodes": [own, *found]}).encode())

    def figures(self, since_s: float = 0.0) -> dict[str, Any]:
        """Of this node."""
        node, figures, gate = self.node, self.node.figures, self.node.gate
        clients = sorted(node.leases, key=lambda lease: -len(lease.sandboxes))[:CLIENTS]
        return {
            "node": node.name,
            "provider": node.plugin,
            "capabilities": sorted(node.capabilities),
            "started_s": figures.started_s,
            "now_s": time.time(),
            "states": dict(states(node)),
            "series": figures.series(since_s),
            "latencies_ms": figures.percentiles(),
            "queue": {"depth": gate.waiting, "oldest_s": gate.oldest_s, "refused": dict(gate.refused)},
            "room": {"live": gate.live, "most": gate.limits.sandboxes, "starting": gate.starting,
                     "starts": gate.limits.starts, "memory_bytes": gate.memory_bytes,
                     "budget_bytes": gate.limits.memory_bytes},
            "pool": {"hits": node.pools.hits, "misses": node.pools.misses, "warm": node.pools.warm},
            "done": dict(figures.done),
            "failed": dict(figures.failed),
            "counts": {**figures.counts, "replayed": self.operations.replayed, "abandoned": self.operations.abandoned},
            "pressure": asdict(gate.pressure) if gate.pressure else None,
            "limits": asdict(gate.limits),
            "clients": [{"client": one.client, "sandboxes": len(one.sandboxes), "group": one.group} for one in clients],
        }  # fmt: skip

    async def _other(self, url: str, since: str) -> dict[str, Any]:
        """The figures of another node, or why there are none."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=OTHER_S)
            headers = {"Authorization": f"Bearer {self.token}"}
            self._session = aiohttp.ClientSession(timeout=timeout, headers=headers)
        try:
            params = {"since": since, "alone": "1"}
            address = f"{url.rstrip('/')}/{wire.API}/fleet"
            async with self._session.get(address, params=params, allow_redirects=False) as reply:
                data = json.loads(await reply.content.read(OTHER_BYTES))
                found: dict[str, Any] = data["nodes"][0]
                return found
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
            return {"node": url, "missing": f"{type(error).__name__}: {error}"}

    async def close(self) -> None:
        if self._session is not None:
            with suppress(aiohttp.ClientError):
                await self._session.close()
