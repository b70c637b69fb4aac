"""The control plane alone: what an episode costs when sampler, sandbox and tools cost nothing.

The real loop (`core/inprocess` around `run_episode`) plays episodes of 5 turns and 8 calls on public fakes: a scripted
sampler, workspaces in memory, three trivial tools; each trace is encoded, checksummed and stored, as in a run. The run
folder is in memory too, and what a disk adds is a row of its own. The process is bound to one core. An episode samples
about 560 ids and has about 1,100 of context; every id is a number of its own, as in a real vocabulary, not one of the
interpreter's shared small ones.

Memory is the growth of the process's resident set, divided by the episodes, when 10,000 stand in their last turn at
once. The ledger is driven as the loop of a stage drives it, one report at a time, with 1,000 nodes of 8 episodes each.

The peer is verifiers 0.4.0. Its episode is a program that talks HTTP to an interception server in the framework's
process; a harness is its door for programs. The cheapest one it admits is measured: a harness of our own that runs in
process, has no program to start and no tool server, plays the same turns and the same calls as plain functions, and a
client that answers from the same script without a model. What is not equal: verifiers' turns cross a loopback HTTP
server and are parsed as chat completions (that is its architecture), it renders no ids, holds no workspace and
takes no patch; its trace stays an object, ours is encoded and stored.

    python benchmarks/control_plane.py
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import heapq
import os
import pstats
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from results import Results, Row, alternate, parser
from workers import Worker, environment

from composer_core.config import InProcessConfig
from composer_core.context import Plain
from composer_core.executor import InProcessExecutor
from composer_core.ledger import Ledger, LedgerConfig, SlotResult
from composer_core.parts import EpisodeParts
from composer_core.protocols import BuildContext
from composer_core.records import NoConfig, ToolSpec
from composer_core.sandbox import Sandboxes
from composer_core.stores import FolderConfig, FolderStore
from composer_core.toolbox import Tool, Toolbox
from composer_core.trees import Tree
from composer_core.types import Call, EpisodeRequest, GenerateRequest, GradingRef, Limits, ParsedTurn, SlotKey, TaskView
from composer_testing.fakes import tools
from composer_testing.fakes.sampler import ScriptedSampler
from composer_testing.fakes.sandbox import MemoryProvider
from composer_testing.fakes.text import ByteTokenizer, LineRenderer

PEER = "verifiers==0.4.0"
TURNS, CALLS = 5, 8
TREE = Tree.of({f"pkg/module_{name}.py": f"x = {name!r}\n" * 7 for name in "abcd"})
WORKSPACE = TREE.ref
SCRIPT = (("read a", "read b"), ("read c", "read d"), ("write a", "read a"), ("read b",), ("done",))
"""Calls of each turn: 8 in 5 turns."""
LIMITS = Limits(tokens=1024, context_tokens=2048)
OFFSET = 1000
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Folder of a file system in memory; without one, the disk's."""


class WideTokenizer(ByteTokenizer):
    """One id a byte, above the small integers that the interpreter shares."""

    def encode(self, text: str) -> list[int]:
        return [byte + OFFSET for byte in super().encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes([id - OFFSET for id in ids if id >= OFFSET]).decode("utf-8", "replace")


RENDERER = LineRenderer(WideTokenizer())


def turn(number: int) -> ParsedTurn:
    """What the script says in one turn."""
    calls = []
    for index, (name, *letter) in enumerate(words.split() for words in SCRIPT[number]):
        path = {"path": f"pkg/module_{letter[0]}.py"} if letter else {}
        text = {"text": "x = 'changed'\n"} if name == "write" else {}
        calls.append(Call(f"c{index}", name, {**path, **text}))
    return ParsedTurn("Let me look at this.", tuple(calls))


ROWS = [RENDERER.render(turn(number)) for number in range(TURNS)]
BY_POSITION = {sum(map(len, ROWS[:number])): row for number, row in enumerate(ROWS)}


def say(request: GenerateRequest, ids: Sequence[int]) -> Sequence[int]:
    return BY_POSITION[request.position]


class Together:
    """A sampler's clock that lets a turn begin only when all episodes stand at it."""

    def __init__(self, episodes: int, last: Callable[[], None]) -> None:
        self._episodes, self._last = episodes, last
        self._arrived, self._turn = 0, 0
        self._go = asyncio.Event()

    async def sleep(self, _seconds: float) -> None:
        self._arrived += 1
        go = self._go
        if self._arrived < self._episodes:
            await go.wait()
            return
        self._turn, self._arrived, self._go = self._turn + 1, 0, asyncio.Event()
        if self._turn == TURNS:
            self._last()
        go.set()


def executor(folder: Path, at_once: int, together: Together | None = None) -> InProcessExecutor:
    """The built-in executor on fakes."""
    specs = [ToolSpec.of(tools.read), ToolSpec.of(tools.write, effect="write"), ToolSpec.of(tools.done, ends=True)]
    waits = {"delay_s": 1.0, "sleep": together.sleep} if together else {}
    sampler = ScriptedSampler(say, **waits)  # type: ignore[arg-type]
    sampler.requests = deque(maxlen=0)  # type: ignore[assignment]
    sampler.released = deque(maxlen=0)  # type: ignore[assignment]
    parts = EpisodeParts(
        samplers={"policy": sampler},
        renderer=RENDERER,
        toolbox=Toolbox({spec.name: Tool.of(f"fakes/{spec.name}", spec, spec.function, None) for spec in specs}),
        sandboxes=Sandboxes(MemoryProvider(), "fakes/memory", lambda ref: TREE),
        context=Plain(NoConfig(), BuildContext(folder)),
    )
    built = {"parts": parts, "stores": FolderStore(FolderConfig(), BuildContext(folder))}
    return InProcessExecutor(InProcessConfig(at_once), BuildContext(folder, get=built.__getitem__))


def request(number: int) -> EpisodeRequest:
    view = TaskView("task", "The tests of pkg fail, please find out why and repair what is broken.", WORKSPACE, LIMITS)
    return EpisodeRequest(SlotKey("task", number), f"rl:{number // 8}", view, GradingRef("fakes/none", "task"))


async def play(made: InProcessExecutor, episodes: int) -> float:
    """Seconds that `episodes` take."""
    started = time.perf_counter()
    found = await asyncio.gather(*(made.submit(request(number)) for number in range(episodes)))
    spent = time.perf_counter() - started
    for result in found:
        assert (result.stats.get("turns"), result.stats.get("calls")) == (TURNS, CALLS), result.faults
        assert not result.stats["bad_calls"], result
    return spent


def rate(folder: Path, episodes: int, at_once: int = 64) -> float:
    """Episodes per second."""
    return episodes / asyncio.run(play(executor(folder, at_once), episodes))


# --- memory -----------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_flight(folder: Path, episodes: int) -> tuple[float, float]:
    """(kB per episode in flight, episodes per second) with all of them in flight."""
    at_last = []

    async def all_at_once() -> float:
        together = Together(episodes, lambda: at_last.append(resident_bytes()))
        return await play(executor(folder, episodes, together), episodes)

    gc.collect()
    before = resident_bytes()
    spent = asyncio.run(all_at_once())
    return (at_last[0] - before) / episodes / 1e3, episodes / spent


# --- the ledger -------------------------------------------------------------------------------------------------


def ledger_rate(episodes: int, nodes: int, group_size: int = 8, per_node: int = 8) -> float:
    """Groups per second through the ledger, every slot busy, each end reported by itself."""
    live = nodes * per_node // group_size
    staleness = 3
    per_step = max(1, live // (staleness + 1))
    steps = episodes // (per_step * group_size)
    ledger = Ledger(LedgerConfig(steps, per_step, group_size, max_staleness=staleness), lambda number: "task")
    source = random.Random(0)
    running: list[tuple[float, int, int]] = []
    now = 0.0
    started = time.perf_counter()
    while ledger.step < steps:
        for issue in ledger.issue():
            heapq.heappush(running, (now + source.expovariate(1.0), issue.group, issue.slot))
        ledger.drain()
        if ledger.take() is not None:
            ledger.applied()
            continue
        now, group, slot = heapq.heappop(running)
        ledger.finish(group, slot, SlotResult(True, source.random(), oldest_version=ledger.groups[group].version))
        ledger.drain()
    return ledger.counters["trained_groups"] / (time.perf_counter() - started)


# --- where the time goes ----------------------------------------------------------------------------------------


def costs(folder: Path, episodes: int) -> str:
    """The functions that most of the time is spent in, callees included, as shares of all; a profile slows calls."""
    profile = cProfile.Profile()
    profile.runcall(rate, folder, episodes)
    stats = pstats.Stats(profile)
    total = stats.total_tt  # type: ignore[attr-defined]
    own = sorted(((row[2], key) for key, row in stats.stats.items()), reverse=True)[:8]  # type: ignore[attr-defined]
    return ", ".join(f"{key[2]} ({Path(key[0]).name}) {spent / total:.0%}" for spent, key in own)


def verifiers_rate(worker: Worker, episodes: int) -> float:
    return float(worker.ask(episodes=episodes, at_once=64)["episodes_per_s"])


def main() -> int:
    options = parser(__doc__).parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    flight, episodes, ended, repeats = (50, 30, 800, 1) if options.quick else (10_000, 2_000, 100_000, 5)
    with tempfile.TemporaryDirectory(dir=MEMORY) as name, tempfile.TemporaryDirectory() as disk:
        folder = Path(name)
        rate(folder, 20)
        kilobytes, crowded = in_flight(folder, flight)
        acts: dict[str, Callable[[], float]] = {
            "ours": lambda: rate(folder, episodes),
            "disk": lambda: rate(Path(disk), episodes),
            "ledger": lambda: ledger_rate(ended, 1_000 if ended >= 100_000 else 10),
        }
        python = None if options.no_peer else environment("verifiers", PEER)
        worker = Worker(python, "control_plane/verifiers_side.py") if python else None
        if worker:
            acts["peer"] = lambda: verifiers_rate(worker, max(1, episodes // 20))
        found = {key: median(values) for key, values in alternate(acts, repeats).items()}
        if worker:
            worker.close()
        remarks = [f"most of an episode's time, a function's own: {costs(folder, min(episodes, 300))}"]
    ours, peer, version = found["ours"], found.get("peer"), PEER.replace("==", " ")
    rows = [
        Row("episodes of 5 turns and 8 calls, one core", ours, "episodes/s", peer, version, "ours >= 1000"),
        Row("the same, traces on a disk", found["disk"], "episodes/s"),
        Row("a turn", 1e6 / ours / TURNS, "us", 1e6 / peer / TURNS if peer else None, version),
        Row(f"memory of an episode, {flight:,} in flight", kilobytes, "kB", target="ours <= 50"),
        Row(f"episodes, {flight:,} in flight", crowded, "episodes/s"),
        Row(f"ledger, 1,000 nodes, {ended:,} episodes", found["ledger"], "groups/s"),
    ]
    return Results("control_plane", "The control plane alone", rows, remarks).finish(options)


if __name__ == "__main__":
    sys.exit(main())
