"""Hook module: sandboxes behind servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from composer_core import Footprint, Problem, RunView, SandboxSpec, hookimpl
from composer_core.capabilities import CAPABILITIES
from composer_plugin_server.config import RemoteConfig

COMPOSER_API = 1


@hookimpl
def composer_sandboxes() -> Iterable[SandboxSpec]:
    yield SandboxSpec(
        name="remote",
        summary="Sandboxes of one or more nodes, asked of their servers (composer-run envd); offers what these do",
        factory="composer_plugin_server.remote:build",
        config=RemoteConfig,
        footprint=Footprint(imports={"aiohttp": 13 << 20}),
        isolation="vm",  # at best: `sandbox.needs` says what a run insists on
        relays=True,
        capabilities={name for name in CAPABILITIES if name.startswith("sandbox.")},
    )


@hookimpl
def composer_check(run: RunView) -> Iterator[Problem]:
    """A node is asked over HTTP, and a lease is one node's."""
    for id, config in run.settings.get("sandboxes", ()):
        if id == "server/remote":
            if not config.urls:
                yield Problem("sandbox.urls", "no server is named", 'sandbox.urls = ["http://127.0.0.1:7077"]')
            for url in config.urls:
                if not url.startswith(("http://", "https://")):
                    yield Problem("sandbox.urls", f"{url!r} is no address of a server", "http://HOST:PORT")
            if config.lease and len(config.urls) > 1:
                yield Problem("sandbox.lease", "a lease belongs to one node", "name that node alone in sandbox.urls")
