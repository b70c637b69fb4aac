"""Latencies of `local/namespaces`, beside bare bubblewrap and SWE-ReX 1.4.0's local runtime, and of `docker/docker`
beside `docker run` and `docker exec` (`container_acts.py`): medians and a tail in milliseconds, and memory.

What is timed: a fresh sandbox of a prepared template to the end of its first command; a fork of a sandbox with
changes, alone and to the end of its first command, 64 children of one state alive together; `true` in a sandbox, in 1
and in 16 sandboxes at once; reads, writes, and the patch. Memory is what an idle fork adds to what all processes and
the kernel hold (`many_forks.py`).

Fair: one machine, in turns, each side driven from one event loop of its own process through its own methods. Bare
bubblewrap is started from this process with the same namespaces and binds, and bounds what any such sandbox can reach.

Not equal: SWE-ReX's local runtime isolates nothing and has no workspace, template, fork or patch; its session is a
bash on a terminal that keeps its state, which ours does not, and its start waits 0.3 s by design. Its `execute` is a
plain `subprocess.run`, so `local/process`, our tier that isolates nothing either, stands beside that.

Each row is measured in two blocks: interleaved, one row would pay for the network namespaces that the row before left
the kernel to clean up.

    python benchmarks/sandboxes.py [--repeats 100]
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import fmean, median

from attrs import frozen
from container_acts import SLOW, container_acts
from many_forks import forks, idle
from results import Results, Row, parser, percentile
from workers import Worker, environment

from composer_core.protocols import Created, ExecRequest, SandboxBackend, SandboxProvider, TemplateSpec
from composer_core.trees import Tree
from composer_plugin_local.config import ProcessConfig
from composer_plugin_local.namespaces import NamespacesProvider
from composer_plugin_local.process import ProcessProvider

Act = Callable[[], Awaitable[list[float]]]
PEER = "swe-rex==1.4.0"
RARE = {"rex create": 10, "rex true, 16": 10, **dict.fromkeys(SLOW, 3), "forks": 20, "idle": 100, "docker idle": 100}
"""Acts that are repeated so many times less."""
TREE = Tree.of({f"pkg/module_{index}.py": "x = 1\n" * 60 for index in range(12)})
TRUE = ExecRequest(("true",))
PYTHON = ExecRequest(("python3", "-I", "-S", "-B", "-c", "0"))
BARE = (
    "--unshare-all --unshare-user --disable-userns --die-with-parent --new-session --cap-drop ALL "
    "--uid 65534 --gid 65534 --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 "
    "--symlink usr/bin /bin --proc /proc --dev /dev --tmpfs /tmp --tmpfs /workspace --clearenv true"
)


@frozen
class Counts:
    """How much is measured."""

    repeats: int
    """Of each act, in each of its blocks."""
    blocks: int = 2
    pause_s: float = 0.3
    """Before a block, in which the one before it settles."""
    many: int = 16
    """Sandboxes that run commands at once."""
    forks: int = 64
    """Children of one state, alive together."""
    engine_forks: int = 8
    """The same in containers."""


SMOKE = Counts(repeats=1, blocks=1, pause_s=0.0, many=2, forks=2, engine_forks=1)


async def timed(*calls: Awaitable[object]) -> list[float]:
    """Milliseconds of each of the calls, all at once."""

    async def one(call: Awaitable[object]) -> float:
        started = time.perf_counter()
        await call
        return (time.perf_counter() - started) * 1e3

    return list(await asyncio.gather(*map(one, calls)))


async def bare() -> None:
    path = shutil.which("bwrap") or "bwrap"
    pid = os.posix_spawn(path, [path, *BARE.split()], {"PATH": "/usr/bin:/bin"})
    os.waitpid(pid, 0)


@asynccontextmanager
async def boxes(provider: SandboxProvider, count: int) -> AsyncIterator[list[SandboxBackend]]:
    """Sandboxes of one template, with a change each."""
    try:
        template = await provider.prepare(TemplateSpec(TREE.ref, ("python3",)), TREE)
        made = [await _fresh(provider, template) for _ in range(count)]
        for box in made:
            await box.write("pkg/module_0.py", b"x = 2\n")
        yield made
    finally:
        await provider.close()


async def _fresh(provider: SandboxProvider, template: object) -> SandboxBackend:
    (child,) = await provider.create(template)  # type: ignore[arg-type]
    assert isinstance(child, Created), child
    return child.backend


def our_acts(provider: SandboxProvider, made: list[SandboxBackend], children: int) -> dict[str, Act]:
    """What is done in sandboxes of namespaces."""
    box = made[0]

    async def first() -> list[float]:
        kept: list[SandboxBackend] = []

        async def create_and_run() -> None:
            template = await provider.prepare(TemplateSpec(TREE.ref, ("python3",)), TREE)
            kept.append(await _fresh(provider, template))
            await kept[0].exec(TRUE)

        spent = await timed(create_and_run())
        await kept[0].destroy()
        return spent

    async def fork() -> list[float]:
        kept: list[Created] = []

        async def fork_once() -> None:
            kept.extend(await box.fork(1))  # type: ignore[attr-defined]

        spent = await timed(fork_once())
        await kept[0].backend.destroy()
        return spent

    return {
        "bare": lambda: timed(bare()),
        "first": first,
        "fork": fork,
        "forks": lambda: forks(box, children),
        "idle": lambda: idle(box, children),
        "true": lambda: timed(box.exec(TRUE)),
        "true, 16": lambda: timed(*(each.exec(TRUE) for each in made)),
        "python3": lambda: timed(box.exec(PYTHON)),
        "read": lambda: timed(box.read("pkg/module_1.py", 1 << 20)),
        "write": lambda: timed(box.write("pkg/module_1.py", b"y = 2\n" * 60)),
        "changes": lambda: timed(box.changes(1 << 20)),  # type: ignore[attr-defined]
    }


def peer_acts(worker: Worker, many: int) -> dict[str, Act]:
    """The peer's; a session is opened for each creation and closed untimed."""

    def asking(act: str, width: int) -> Act:
        async def ask() -> list[float]:
            found: list[float] = worker.ask(act=act, width=width)
            if act == "create":
                worker.ask(act="close", width=width)
            return found

        return ask

    made = {f"rex {act}": asking(act, 1) for act in ("create", "execute")}
    return made | {"rex true": asking("true", 1), "rex true, 16": asking("true", many)}


async def blocks(acts: dict[str, Act], counts: Counts) -> dict[str, list[list[float]]]:
    """Blocks of each act; what a session-bound act of the peer needs is opened before and closed after it."""
    found: dict[str, list[list[float]]] = {name: [] for name in acts}
    for name, act in [*acts.items()] * counts.blocks:
        await asyncio.sleep(counts.pause_s)
        for _ in range(max(1, counts.repeats // RARE.get(name, 1))):
            found[name].append(await act())
    return found


async def measure(counts: Counts, peer: bool) -> dict[str, list[list[float]]]:
    async with AsyncExitStack() as stack:
        provider = NamespacesProvider()
        acts = our_acts(provider, await stack.enter_async_context(boxes(provider, counts.many)), counts.forks)
        (plain,) = await stack.enter_async_context(boxes(ProcessProvider(ProcessConfig(trusted=True)), 1))
        acts["process true"] = lambda: timed(plain.exec(TRUE))
        acts |= await stack.enter_async_context(container_acts(TREE, timed, peer, counts.engine_forks))
        python = environment("swe-rex", PEER) if peer else None
        if python is not None:
            worker = stack.enter_context(Worker(python, "sandboxes/swerex_side.py"))
            with_sessions = peer_acts(worker, counts.many)
            found = await blocks({"rex create": with_sessions.pop("rex create")}, counts)
            worker.ask(act="create", width=counts.many)
            return found | await blocks(acts | with_sessions, counts)
        return await blocks(acts, counts)


def rows_of(found: dict[str, list[list[float]]], counts: Counts) -> list[Row]:
    """Medians of single calls; of many at once, the commands that end in a second."""

    def ms(name: str) -> float | None:
        return median(_all(found, name)) if name in found else None

    def rate(name: str) -> float | None:
        return counts.many / median(max(row) for row in found[name]) * 1e3 if name in found else None

    rex, session, execute = PEER.replace("==", " "), "session", "execute, nothing isolated"

    def row(what: str, name: str, peer: str = "", peer_name: str = "", target: str = "") -> Row:
        ours = ms(name)
        assert ours is not None
        return Row(what, ours, "ms", ms(peer), peer_name, target)

    ours = rate("true, 16")
    assert ours is not None
    return [
        row("create to first exec, p50", "first", "rex create", f"{rex} {session}", "ours <= 15"),
        row("fork, p50", "fork"),
        row(f"fork to first exec, {counts.forks} children of one state, p50", "forks", target="ours <= 10"),
        Row(f"memory of an idle fork, mean of {counts.forks}", fmean(_all(found, "idle")), "MiB", target="ours <= 3"),
        row("exec of true, p50", "true", "rex true", f"{rex} {session}", "ours <= 8"),
        Row("exec of true, p99", percentile(_all(found, "true"), 0.99), "ms", target="ours <= 20"),
        row("exec of true, p50", "true", "bare", "bare bubblewrap"),
        Row(f"exec of true, {counts.many} at once", ours, "commands/s", rate("rex true, 16"), f"{rex} {session}s"),
        row(f"exec of true, {counts.many} at once, p50", "true, 16", "rex true, 16", f"{rex} {session}s"),
        row("exec of true in local/process, p50", "process true", "rex execute", f"{rex} {execute}"),
        row("exec of python3 -I -S -B, p50", "python3"),
        row("read a file, p50", "read"),
        row("write a file, p50", "write"),
        row("the patch, p50", "changes"),
        *container_rows(row),
        docker_tail(found),
        Row(
            f"containers: memory of an idle fork, mean of {counts.engine_forks}",
            fmean(_all(found, "docker idle")),
            "MiB",
        ),
    ]


def _all(found: Mapping[str, list[list[float]]], name: str) -> list[float]:
    return [value for row in found[name] for value in row]


def container_rows(row: Callable[..., Row]) -> list[Row]:
    """Of `docker/docker`, beside what people would use instead on the same engine."""
    return [
        row("containers: create to first exec, p50", "docker first", "docker run", "docker run", "ratio >= 0.91"),
        row("containers: fork to first exec, p50", "docker fork", "docker first", "create to first exec", "ratio >= 1"),
        row("containers: exec of true, p50", "docker true", "docker exec", "docker exec", "ratio >= 2"),
        row("containers: exec of true, p50", "docker true", "docker api", "the engine's exec API"),
        row("containers: the patch, p50", "docker changes"),
    ]


def docker_tail(found: Mapping[str, list[list[float]]]) -> Row:
    """The slowest hundredth of commands in a container."""
    tails = {name: percentile(_all(found, name), 0.99) for name in ("docker true", "docker exec") if name in found}
    what, ours, theirs = "containers: exec of true, p99", tails["docker true"], tails.get("docker exec")
    return Row(what, ours, "ms", theirs, "docker exec", "ratio >= 2")


def parts_of_exec(found: Mapping[str, list[list[float]]]) -> str:
    """What the time of `true` in a sandbox is made of, as far as medians tell it apart."""
    whole, ask = (median(row[0] for row in found[name]) for name in ("true", "write"))
    return (
        f"exec of true: {ask:.1f} ms are a request to the keeper and its answer, {whole - ask:.1f} ms the command with "
        "its namespaces, which bubblewrap makes in a root and network of the sandbox that stand already; bare "
        "bubblewrap makes all of them"
    )


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=100, help="of each act, in each of two blocks")
    options = arguments.parse_args()
    counts = SMOKE if options.quick else Counts(options.repeats)
    found = asyncio.run(measure(counts, not options.no_peer))
    title = "Sandboxes in Linux namespaces and containers"
    return Results("sandboxes", title, rows_of(found, counts), [parts_of_exec(found)]).finish(options)


if __name__ == "__main__":
    sys.exit(main())
