"""The controller at scale: 100,000 episodes in flight on 1,000 nodes, in one process with a clock of its own.

The ledger and the rule that places episodes (`composer_plugin_ray.dispatch`) are driven as the loop of an rl stage
drives them, one report at a time: what has room is issued and placed, what has ended is taken in, a step is given out
when there is one. Only time is made up. Each node is one worker with 100 places and one sampler replica; groups of 8, a
quarter of the places a step, max_staleness 16. An episode is 8 calls of tools, each log-normal with p99/p50 = 20; one
in 200 is void, and every now and then a node vanishes with all that it runs and comes back empty. Losses, voids and
stragglers are in every figure.

A decision is a slot issued and placed, a report taken in, or a step given out; its cost is time of the processor and
holds the simulation's own event queue; garbage is collected as often as `composer-run` has it. Memory is the growth of
the process's resident set while everything comes in flight. Loads of workers and replicas are looked at throughout the
run whenever all places are taken, and the worst of all looks is told, as a share of the mean: a node that has come back
is empty for a while, so others hold more. A group waits from the end of its last member to its step.

    python benchmarks/simulation.py [--quick]
"""

from __future__ import annotations

import cProfile
import gc
import heapq
import json
import math
import pstats
import random
import sys
import time
from functools import partial
from pathlib import Path

from attrs import Factory, define, field
from control_plane import resident_bytes
from results import Results, Row, alternate, parser

from composer_core.commands.common import COLLECTIONS
from composer_core.ledger import Issue, Ledger, LedgerConfig, SlotResult
from composer_plugin_ray.dispatch import Dispatch, Placement

PER_NODE, GROUP, BATCHES, STALENESS = 100, 8, 4, 16
SIGMA = math.log(20) / 2.3263
"""Of a log-normal distribution whose p99 is 20 times its median."""
CALLS = 8
MEAN_S = CALLS * math.exp(SIGMA**2 / 2)
"""Of an episode; the median of a call is 1 s."""
POOL = 20_000
"""Durations to draw from: drawing calls anew would cost more than what is measured."""
VOID_SHARE = 1 / 200
TRAINER_SHARE = 0.8
"""What a step takes, as a share of the time in which the nodes sample a batch."""
LOOKS = 200
"""Looks at the nodes' loads."""


@define
class Fleet:
    """Nodes, the ledger, and the queue of what will happen."""

    episodes: int
    """In flight at once."""
    total: int
    """Decisions until the end."""
    seed: int = 0
    now: float = 0.0
    decisions: int = 0
    lost: int = 0
    ledger: Ledger = field(init=False)
    dispatch: Dispatch = Factory(Dispatch)
    queue: list[tuple[float, int, str, object]] = Factory(list)
    running: dict[tuple[int, int], tuple[Placement, int]] = Factory(dict)
    """By slot: where it runs, and the number of the event that ends it."""
    ended_s: dict[int, float] = Factory(dict)
    """Groups that wait for their step, and since when."""
    longest_wait_s: float = 0.0
    """Of a group."""
    full: int = 0
    """Looks at which all places were taken."""
    spread: dict[str, float] = Factory(lambda: {"workers": 0.0, "replicas": 0.0})
    """The largest load as a share of the mean, the worst of all looks."""
    _events: int = 0
    _source: random.Random = field(init=False)
    _pool: list[float] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._source = random.Random(self.seed)
        self._pool = [sum(self._source.lognormvariate(0, SIGMA) for _ in range(CALLS)) for _ in range(POOL)]
        per_step = max(1, self.episodes // GROUP // BATCHES)
        config = LedgerConfig(sys.maxsize, per_step, GROUP, max_staleness=STALENESS, max_voids_in_a_row=10**9)
        self.ledger = Ledger(config, lambda number: f"task-{number % 500}")
        self.step_s = TRAINER_SHARE * MEAN_S / BATCHES
        self.names = [f"node-{number}" for number in range(max(1, self.episodes // PER_NODE))]
        for name in self.names:
            self.add(name)
        self.at(MEAN_S, "vanish", None)

    step_s: float = field(init=False)
    names: list[str] = field(init=False)

    def add(self, name: str) -> None:
        self.dispatch.workers.add(name)
        self.dispatch.replicas.add(name)

    def at(self, delay_s: float, what: str, whom: object) -> int:
        self._events += 1
        heapq.heappush(self.queue, (self.now + delay_s, self._events, what, whom))
        return self._events

    def issue(self) -> None:
        for issue in self.ledger.issue(self.episodes - len(self.running)):
            slot = issue.group, issue.slot
            placement = self.dispatch.place(f"rl:{issue.group}")
            self.running[slot] = placement, self.at(self._source.choice(self._pool), "end", issue)
            self.decisions += 1
        self.ledger.drain()

    def go_on(self) -> None:
        """One round of the loop."""
        self.issue()
        if (batch := self.ledger.take()) is not None:
            self.decisions += 1
            self.at(self.step_s, "applied", batch)
            waited_s = (self.now - self.ended_s.pop(group.number, self.now) for group in batch)
            self.longest_wait_s = max(self.longest_wait_s, *waited_s)
        self.now, number, what, whom = heapq.heappop(self.queue)
        if what == "applied":
            self.ledger.applied()
        elif what == "vanish":
            self.vanish(self._source.choice(self.names))
            self.at(MEAN_S * self._source.expovariate(1.0), "vanish", None)
        else:
            self.end(whom, number)  # type: ignore[arg-type]

    def end(self, issue: Issue, number: int) -> None:
        slot = issue.group, issue.slot
        if slot not in self.running or self.running[slot][1] != number:
            return  # it was lost
        self.dispatch.ended(self.running.pop(slot)[0])
        self.decisions += 1
        draw = self._source.random()
        group = self.ledger.groups[issue.group]
        valid = draw >= VOID_SHARE
        cause = None if valid else "host"
        self.ledger.finish(*slot, SlotResult(valid, draw, cause, oldest_version=group.version, tokens=900))
        self.ledger.drain()
        if not group.open():
            self.ended_s[issue.group] = self.now

    def vanish(self, name: str) -> None:
        """A node with all that it runs; it comes back empty."""
        found = [slot for slot, (placement, _) in self.running.items() if placement.worker.name == name]
        self.add(name)
        for slot in found:
            self.dispatch.ended(self.running.pop(slot)[0])
            self.ledger.lose(*slot)
        self.lost += len(found)

    def look(self) -> None:
        if len(self.running) < self.episodes:
            return
        self.full += 1
        for name, places in (("workers", self.dispatch.workers), ("replicas", self.dispatch.replicas)):
            loads = places.loads().values()
            self.spread[name] = max(self.spread[name], max(loads) * len(loads) / sum(loads))

    def stalest(self) -> int:
        """Staleness of the stalest group that was trained."""
        return max(map(int, self.ledger.table()["staleness"]), default=0)

    def run(self) -> float:
        """Seconds that a decision takes on average; looks are left out."""
        spent, since = 0.0, time.process_time()
        for look in range(1, LOOKS + 1):
            while self.decisions < self.total * look // LOOKS:
                self.go_on()
            self.issue()
            spent += time.process_time() - since
            self.look()
            since = time.process_time()
        return spent / self.decisions


def costs(fleet: Fleet) -> str:
    """The functions that most of the time is spent in, as shares of all; a profile slows calls."""
    profile = cProfile.Profile()
    profile.runcall(fleet.run)
    stats = pstats.Stats(profile)
    total = stats.total_tt  # type: ignore[attr-defined]
    own = sorted(((row[2], key) for key, row in stats.stats.items()), reverse=True)[:8]  # type: ignore[attr-defined]
    return ", ".join(f"{key[2]} ({Path(key[0]).name}) {spent / total:.0%}" for spent, key in own)


def memory_kb(episodes: int) -> float:
    """Of an episode, when as many as there are places are in flight."""
    gc.collect()
    before = resident_bytes()
    fleet = Fleet(episodes, episodes)
    fleet.issue()
    gc.collect()
    return (resident_bytes() - before) / len(fleet.running) / 1e3


def main() -> int:
    options = parser(__doc__).parse_args()
    sizes, total, repeats = ((400, 800, 1600), 4_000, 1) if options.quick else ((1_000, 10_000, 100_000), 600_000, 3)
    gc.set_threshold(*COLLECTIONS)
    kilobytes = memory_kb(sizes[-1])
    fleets: dict[int, Fleet] = {}

    def cost(episodes: int) -> float:
        gc.collect()
        fleets[episodes] = Fleet(episodes, total)
        return 1e6 * fleets[episodes].run()

    found = alternate({str(size): partial(cost, size) for size in sizes}, repeats)
    micros = {size: min(found[str(size)]) for size in sizes}
    last = fleets[sizes[-1]]
    started = time.process_time()
    state = json.dumps(last.ledger.to_json())
    written_s = time.process_time() - started
    growth, bound = micros[sizes[-1]] / micros[sizes[0]], math.log(sizes[-1]) / math.log(sizes[0])
    counters = last.ledger.counters
    nodes = len(last.names)
    rows = [
        Row(f"decisions, {sizes[-1]:,} episodes on {nodes:,} nodes", 1e6 / micros[sizes[-1]], "decisions/s"),
        *(Row(f"a decision, {size:,} episodes on {size // PER_NODE:,} nodes", micros[size], "us") for size in sizes),
        Row(
            f"a decision at {sizes[-1]:,} against {sizes[0]:,} (the logarithm grows {bound:.2f} times)",
            growth,
            "times",
            target=f"ours <= {bound:.2f}",
        ),
        Row("memory of an episode in ledger, placement and event queue", kilobytes, "kB"),
        Row("largest load of a worker, of the mean", last.spread["workers"], "times"),
        Row("largest load of a replica, of the mean", last.spread["replicas"], "times"),
        Row("longest wait of a group for its step, of a step's time", last.longest_wait_s / last.step_s, "times"),
        Row(f"the ledger's state as JSON ({len(state) / 1e6:.0f} MB), once a commit", written_s, "s"),
    ]
    remarks = [
        f"the last run trained {counters['trained_groups']:,} groups in {last.ledger.step:,} steps, staleness at most "
        f"{last.stalest()}; all places were taken at {last.full} of {LOOKS} looks; {last.lost:,} episodes were lost "
        f"with their nodes and {counters['void']:,} void",
        f"most of a decision's time, a function's own: {costs(Fleet(sizes[-1], total // 4))}",
    ]
    return Results("simulation", "The controller at scale", rows, remarks).finish(options)


if __name__ == "__main__":
    sys.exit(main())
