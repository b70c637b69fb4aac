"""Bursts through the environment server: 1,000 creations on `local/namespaces` and 10,000 on sandboxes in memory, all
asked for at once and all alive together; and what a server adds to each act.

The server is `composer-run envd` in a process of its own with its settings as they ship, the number of sandboxes apart;
this process is the client, `server/remote`. A burst is one creation for each sandbox, each a request on a connection
of its own, so that all stand in the server's line at once. A creation's time is what the caller sees, waiting included;
the time that the server let it wait for room is told apart; the rest is mostly the making of so many connections. After
a burst a command runs in every sandbox before the first is destroyed: what was created is there.

Single acts are those of one sandbox, one at a time, beside the same provider in this process: the difference is what
the HTTP requests cost, on a machine whose two cores client and server share. In memory the acts themselves cost
nothing.

    python benchmarks/envd.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

from results import Results, Row, parser, versions_of

from composer_core.protocols import Created, ExecRequest, SandboxBackend, SandboxProvider, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_local.namespaces import NamespacesProvider
from composer_plugin_server.config import RemoteConfig
from composer_plugin_server.remote import RemoteProvider
from composer_testing.fakes.sandbox import MemoryProvider

TREE = Tree.of({f"pkg/module_{index}.py": "x = 1\n" * 60 for index in range(12)})
SPECS = {
    "local/namespaces": TemplateSpec(TREE.ref, memory_bytes=48 << 20),
    "fakes/memory": TemplateSpec(TREE.ref, memory_bytes=1 << 20),
}
"""A quarter of the memory limit is what a server counts a sandbox with; those in memory take next to none."""
TRUE = ExecRequest(("true",), timeout_s=60.0)
TOKEN = "the-token-of-a-benchmark"
COUNTS = {"local/namespaces": 1_000, "fakes/memory": 10_000}
QUICK = {"local/namespaces": 4, "fakes/memory": 8}
PROVIDERS: Mapping[str, Callable[[], SandboxProvider]] = {
    "local/namespaces": NamespacesProvider,
    "fakes/memory": MemoryProvider,
}
AT_ONCE = 32
"""Commands of a burst that run at once."""
SHARES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
SAME = "the provider in this process"


@contextmanager
def envd(use: str, sandboxes: int) -> Iterator[str]:
    """The address of a server of its own."""
    with tempfile.TemporaryDirectory() as state:
        settings = {"sandbox.use": use, "server.port": "0", "server.state": state, "admission.sandboxes": sandboxes}
        argv = [sys.executable, "-m", "composer_core.cli", "--plugins", use.partition("/")[0], "envd"]
        argv += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        environment = {**os.environ, "COMPOSER_ENVD_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                assert process.stdout is not None
                found = (re.search(r" at (http\S+),", line) for line in process.stdout)
                address = next(filter(None, found), None)
                assert address, "the server did not start"
                yield address[1]
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(120)


def remote(url: str, starts: int = 1) -> RemoteProvider:
    return RemoteProvider(RemoteConfig(urls=(url,), starts=starts, wait_s=600.0), TOKEN)


# --- bursts -------------------------------------------------------------------------------------------------------


async def burst(url: str, use: str, count: int) -> dict[str, Any]:
    """Times of all creations of one burst, what the server says of their waiting, and how many commands went well."""
    provider = remote(url, count)
    try:
        template = await provider.prepare(SPECS[use], TREE)
        started = time.perf_counter()
        made = await asyncio.gather(*(creation(provider, template) for _ in range(count)))
        whole_s = time.perf_counter() - started
        told = await asyncio.to_thread(figures, url)
        ran = await in_all([outcome for _, outcome in made if not isinstance(outcome, str)])
    finally:
        await provider.close()
    failed = Counter(outcome for _, outcome in made if isinstance(outcome, str))
    return {"times": sorted(spent for spent, _ in made), "whole_s": whole_s, "failed": failed, "ran": ran, "told": told}


async def creation(provider: RemoteProvider, template: Any) -> tuple[float, SandboxBackend | str]:
    """Seconds, and the sandbox or why there is none."""
    started = time.perf_counter()
    try:
        (child,) = await provider.create(template)
        outcome = child.backend if isinstance(child, Created) else child.error
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}".partition("\n")[0]
    return time.perf_counter() - started, outcome


async def in_all(boxes: list[SandboxBackend]) -> int:
    """Sandboxes in which a command ran well."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(box: SandboxBackend) -> bool:
        async with gate:
            return (await box.exec(TRUE)).exit_code == 0

    return sum(await asyncio.gather(*map(one, boxes)))


def figures(url: str) -> dict[str, Any]:
    """The server's own, as its page gets them."""
    request = Request(f"{url}/v1/fleet", headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(request, timeout=60) as reply:
        found: dict[str, Any] = json.load(reply)["nodes"][0]
    return found


def burst_rows(use: str, count: int, found: dict[str, Any]) -> list[Row]:
    what, times = f"burst of {count:,} on {use}", found["times"]
    shares = {share: times[int(part * (len(times) - 1))] for share, part in SHARES.items()}
    return [
        Row(f"{what}: created", float(count - found["failed"].total()), "sandboxes", target=f"ours >= {count}"),
        Row(f"{what}: alive together and ran a command", float(found["ran"]), "sandboxes", target=f"ours >= {count}"),
        Row(f"{what}: creations", count / found["whole_s"], "sandboxes/s"),
        *(Row(f"{what}: until created, {share}", value, "s") for share, value in shares.items()),
    ]


def waiting(use: str, count: int, found: dict[str, Any]) -> list[str]:
    """What the server says of a burst's newest creations, and what failed."""
    node = found["told"]
    wait, create = node["latencies_ms"]["wait"], node["latencies_ms"]["create"]
    said = (
        f"{use}: of its newest 4,096 creations the server let each wait for a start p50 {wait['p50'] / 1e3:.2f} s, "
        f"p99 {wait['p99'] / 1e3:.2f} s, and made it in p50 {create['p50']:.2f} ms, p99 {create['p99']:.2f} ms, "
        f"at most {node['limits']['starts']} at once; refused: {sum(node['queue']['refused'].values())}"
    )
    return [said, *(f"{use}: {times} of {count:,} failed: {why}" for why, times in found["failed"].items())]


# --- single acts --------------------------------------------------------------------------------------------------


async def acts(provider: SandboxProvider, use: str, repeats: int) -> dict[str, float]:
    """Median milliseconds of each act in one sandbox."""
    try:
        template = await provider.prepare(SPECS[use], TREE)
        (child,) = await provider.create(template)
        assert isinstance(child, Created)
        box: Any = child.backend
        each: dict[str, Callable[[], Awaitable[Any]]] = {
            "create": lambda: provider.create(template),
            "fork": lambda: box.fork(1),
            "exec of true": lambda: box.exec(TRUE),
            "read a file": lambda: box.read("pkg/module_1.py", 1 << 20),
            "the patch": lambda: box.changes(1 << 20),
        }
        found: dict[str, list[float]] = {name: [] for name in each}
        for _ in range(repeats):
            for name, act in each.items():
                started = time.perf_counter()
                made = await act()
                found[name].append(time.perf_counter() - started)
                if name in ("create", "fork"):
                    await made[0].backend.destroy()
        return {name: median(values) * 1e3 for name, values in found.items()}
    finally:
        await provider.close()


async def act_rows(repeats: int) -> list[Row]:
    rows = []
    for use, build in PROVIDERS.items():
        own = await acts(build(), use, repeats)
        with envd(use, 64) as url:
            through = await acts(remote(url), use, repeats)
        beside = own if use != "fakes/memory" else {}
        rows += [
            Row(f"{act} through a server on {use}, p50", through[act], "ms", beside.get(act), SAME if beside else "")
            for act in own
        ]
    return rows


async def measure(options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    remarks: list[str] = []
    for use, count in (QUICK if options.quick else COUNTS).items():
        with envd(use, count) as url:
            found = await burst(url, use, count)
        rows += burst_rows(use, count, found)
        remarks += waiting(use, count, found)
    return rows + await act_rows(3 if options.quick else options.repeats), remarks


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=200, help="of each act")
    options = arguments.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows, remarks = asyncio.run(measure(options))
    made = Results("envd", "Bursts through the environment server", rows, remarks, versions_of("aiohttp"))
    return made.finish(options)


if __name__ == "__main__":
    sys.exit(main())
