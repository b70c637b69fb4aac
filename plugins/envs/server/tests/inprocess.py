"""A server in the test's own process and event loop, over sandboxes in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from composer_core.protocols import TemplateSpec
from composer_core.trees import Tree
from composer_plugin_server.config import RemoteConfig
from composer_plugin_server.remote import RemoteProvider
from composer_plugin_server.server import serve
from composer_plugin_server.settings import Admission, Server, Settings
from composer_plugin_server.settings import Sandboxes as Provider
from composer_testing.fakes.sandbox import MemoryProvider

TREE = Tree.of({"a.txt": "one\n"})
SPEC = TemplateSpec(TREE.ref, memory_bytes=64 << 20)
TOKEN = "a-token-that-only-tests-know"


def room(**limits):
    """Admission that the machine's own load has no part in."""
    return Admission(**{"free_bytes": 0, "memory_pressure": 100.0, "cpu_pressure": 100.0, **limits})


@asynccontextmanager
async def served(tmp_path, monkeypatch, provider=None, **tables):
    """A server in this process, on a free port."""
    monkeypatch.setenv("COMPOSER_ENVD_TOKEN", TOKEN)
    given = {"admission": room(), **tables}
    state = str(tmp_path / f"state-{id(provider)}")
    given["server"] = Server(**{"port": 0, "state": state, **given.get("server", {})})
    made = provider or MemoryProvider()
    async with serve(
        Settings(sandbox=Provider(use="fakes/memory"), **given), lambda _: made, "fakes/memory"
    ) as running:
        yield running


@asynccontextmanager
async def client(running, **settings):
    provider = RemoteProvider(RemoteConfig(urls=(running.url,), **{"wait_s": 5.0, **settings}), TOKEN)
    try:
        yield provider
    finally:
        await provider.close()


async def create(provider, count=1):
    made = await provider.create(await provider.prepare(SPEC, TREE), count)
    return [child.backend for child in made]


async def until(happened):
    for _ in range(200):
        if happened():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")
