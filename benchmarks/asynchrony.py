"""Asynchronous against synchronous training under heavy-tailed tools: samples, an idle trainer, dropped tokens.

The real loop of an rl stage and the real ledger, with a made-up executor and trainer on an event loop whose clock jumps
(`virtual_time`): a run of hours takes seconds and is exact. An episode has 8 turns, each 1 s of a simulated model and a
tool's latency, log-normal with a median of 1 s and p99/p50 = 20. Latencies follow from task and attempt, so all runs
see the same ones: one trace. Groups of 8, 8 groups a step. A trainer's step takes 25 % of the synchronous step, which
is the longest episode of a batch on average, and then that step; publishing weights takes 2 % of a trainer's step on
top, in which nothing is trained. Synchronous is max_staleness 0; asynchronous is max_staleness 4 and places for 4
batches.

The bound comes from the same trace: no schedule ends before the places have worked off all that was trained, nor before
the trainer has made all its steps after the earliest possible first batch. The trainer's idle share is of the time from
its first step's begin to its last one's end. Dropped is every sampled token that was never trained, those of cancelled
episodes and of unfinished ones at the end included. Each figure is that of the worst seed.

With a bound on staleness the trainer has to wait for the slowest group (`wait`, the default, which drops nothing), or
not to train it (`drop`, or `oversample` under `wait`).

    python benchmarks/asynchrony.py [--quick]
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import attrs
from attrs import define, field, frozen
from results import Results, Row, parser
from virtual_time import run

from composer_core.config import RlStage
from composer_core.ledger import Ledger
from composer_core.rollouts import RlLoop, RlParts, ledger_for
from composer_core.traces import encode
from composer_core.trees import TreeRef
from composer_core.types import (
    EpisodeRequest,
    EpisodeResult,
    GradingRef,
    StepStats,
    Task,
    TaskView,
    TraceRef,
    TrainBatch,
)
from composer_testing.fakes.runs import make_trace

SIGMA = math.log(20) / 2.3263
"""Of a log-normal distribution whose p99 is 20 times its median."""
MODEL_S = 1.0
"""Of one turn's generation."""
TRAINER_SHARE, PUBLISH_SHARE = 0.25, 0.02
TOKENS = 100
"""Sampled in one turn."""
STAGE = RlStage(name="rl", steps=60, groups_per_step=8, group_size=8, max_staleness=4, stall_s=0.0)
BATCH = STAGE.groups_per_step * STAGE.group_size
PLACES = 4 * BATCH
TASKS = [
    Task(TaskView(f"task-{number}", "Mend it.", TreeRef("0" * 64)), GradingRef("tests", "t"), "train")
    for number in range(50)
]


@cache
def latencies(seed: int, attempt: int, turns: int) -> tuple[float, ...]:
    """Of the tools of one attempt, turn by turn; the same in every run."""
    source = random.Random(f"{seed}/{attempt}")
    return tuple(source.lognormvariate(0, SIGMA) for _ in range(turns))


@define
class World:
    """Executor, trainer and store; each waits as long as what it stands for."""

    seed: int
    turns: int
    places_: int
    train_s: float
    version: int = 0
    """That replicas serve."""
    steps_s: list[float] = field(factory=list)
    """When each step began."""
    sampled: int = 0
    """Tokens, those of episodes that were cancelled included."""
    trained: list[str] = field(factory=list)
    """Episodes that steps were made of."""
    files: dict[str, bytes] = field(factory=dict)

    def places(self) -> int:
        return self.places_

    async def submit(self, request: EpisodeRequest) -> EpisodeResult:
        oldest = self.version
        for latency in latencies(self.seed, request.key.attempt, self.turns):
            await asyncio.sleep(MODEL_S)
            self.sampled += TOKENS
            await asyncio.sleep(latency)
        uri = request.key.episode_id
        trace = make_trace(request.key, solved=request.key.attempt % 3 == 0, version=oldest)
        self.files[uri] = encode(attrs.evolve(trace, branches=(attrs.evolve(trace.branches[0], routes=None),)))
        stats = {"tokens": float(TOKENS * self.turns)}
        reward = float(request.key.attempt % 3 == 0)
        ref = TraceRef(uri, "")
        return EpisodeResult(
            request.key, request.group, ref, trace.verdict, reward=reward, oldest_version=oldest, stats=stats
        )

    def get(self, uri: str) -> bytes:
        self.trained.append(uri)
        return self.files.pop(uri)

    def stats(self) -> dict[str, float]:
        return {}

    async def step(self, batch: TrainBatch) -> StepStats:
        self.steps_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.train_s)
        return StepStats({})

    async def publish(self, stats: StepStats) -> None:
        await asyncio.sleep(PUBLISH_SHARE * self.train_s)
        self.version += 1


@frozen
class Outcome:
    """One run of the stage."""

    wall_s: float
    idle: float
    """Share of the trainer's time from its first step on."""
    dropped: float
    """Share of the sampled tokens that was dropped."""
    staleness: int
    """Of the stalest group."""
    trained: tuple[str, ...]


def play(stage: RlStage, seed: int, turns: int, places: int, train_s: float) -> Outcome:
    """Run the stage to its end."""
    world: Any = World(seed, turns, places, train_s)
    parts = RlParts(
        stage=stage,
        algorithm_id="none",
        tasks=TASKS,
        executor=world,
        trainer=world,
        store=world,
        group_rewards=(),
        run_seed=seed,
        limits={},
        emit=lambda event: None,
        journal=lambda entries: None,
    )
    ledger: Ledger = ledger_for(stage, TASKS, seed, deterministic=False)

    async def whole() -> float:
        await RlLoop(parts, ledger, world.publish).run()
        return asyncio.get_running_loop().time()

    wall_s = run(whole())
    counters = ledger.counters
    since_s = world.steps_s[-1] + train_s - world.steps_s[0]
    return Outcome(
        wall_s,
        1 - stage.steps * train_s / since_s,
        1 - len(world.trained) * TOKENS * turns / world.sampled,
        max(int(name.partition("/")[2]) for name in counters if name.startswith("staleness/")),
        tuple(world.trained),
    )


def duration_s(seed: int, attempt: int, turns: int) -> float:
    return sum(MODEL_S + latency for latency in latencies(seed, attempt, turns))


def longest_s(seed: int, steps: int, turns: int) -> float:
    """The longest episode of a batch, on average over the batches of a synchronous run."""
    batches = (range(step * BATCH, (step + 1) * BATCH) for step in range(steps))
    return sum(max(duration_s(seed, attempt, turns) for attempt in batch) for batch in batches) / steps


def bound_s(trained: Sequence[str], seed: int, steps: int, turns: int, train_s: float) -> float:
    """No schedule of these episodes ends earlier."""
    attempts = [int(uri.rpartition("-")[2]) for uri in trained]
    worked_s = [duration_s(seed, attempt, turns) for attempt in attempts]
    groups: dict[int, float] = {}
    for attempt, spent_s in zip(attempts, worked_s, strict=True):
        group = attempt // STAGE.group_size
        groups[group] = max(groups.get(group, 0.0), spent_s)
    first_s = sorted(groups.values())[STAGE.groups_per_step - 1]
    trainer_s = first_s + steps * train_s + (steps - 1) * PUBLISH_SHARE * train_s
    return max(trainer_s, sum(worked_s) / PLACES + train_s)


POLICIES: dict[str, dict[str, Any]] = {
    "drop": {"staleness": "drop"},
    "oversample 1": {"oversample": 1},
    "wait": {},
}


@frozen
class Compared:
    """A policy beside the synchronous run, on one seed's trace."""

    apart: Outcome
    together: Outcome
    bound_s: float
    samples: int

    @property
    def ratio(self) -> float:
        return self.together.wall_s / self.apart.wall_s


def compare(seed: int, steps: int, turns: int = 8) -> dict[str, Compared]:
    """Every policy on one trace."""
    stage = attrs.evolve(STAGE, steps=steps)
    train_s = longest_s(seed, steps, turns) * TRAINER_SHARE / (1 - TRAINER_SHARE)
    together = play(attrs.evolve(stage, max_staleness=0), seed, turns, PLACES, train_s)
    found = {}
    for name, changes in POLICIES.items():
        apart = play(attrs.evolve(stage, **changes), seed, turns, PLACES, train_s)
        found[name] = Compared(apart, together, bound_s(apart.trained, seed, steps, turns, train_s), steps * BATCH)
    return found


def rows_of(name: str, found: Sequence[Compared], *, promised: bool) -> list[Row]:
    """The worst seed of each figure."""
    slow = min(found, key=lambda one: one.ratio)
    rate, peer = slow.samples / slow.apart.wall_s, slow.samples / slow.together.wall_s
    costs = (
        ("trainer idle", 100 * max(one.apart.idle for one in found), "%", "ours <= 10"),
        ("sampled tokens that were dropped", 100 * max(one.apart.dropped for one in found), "%", "ours <= 2"),
        ("wall time, of the bound", max(one.apart.wall_s / one.bound_s for one in found), "times", "ours <= 1.1"),
        ("staleness of the stalest group", max(one.apart.staleness for one in found), "versions", "ours <= 4"),
    )
    return [
        Row(f"{name}: samples", rate, "samples/s", peer, "synchronous", "ratio >= 2.5" if promised else ""),
        *(
            Row(f"{name}: {what}", value, unit, target=target if promised else "")
            for what, value, unit, target in costs
        ),
    ]


def main() -> int:
    options = parser(__doc__).parse_args()
    steps, seeds = (6, 1) if options.quick else (STAGE.steps, 5)
    found = [compare(seed, steps) for seed in range(seeds)]
    rows = [row for name in POLICIES for row in rows_of(name, [one[name] for one in found], promised=name == "drop")]
    remarks = [
        f"{seeds} seeds of {steps} steps, {BATCH} episodes each; under `wait` a group that outlasts 5 steps of the "
        "trainer stops it, whatever the schedule: its first tokens are due",
    ]
    return Results("asynchrony", "Asynchronous training under heavy-tailed tools", rows, remarks).finish(options)


if __name__ == "__main__":
    sys.exit(main())
