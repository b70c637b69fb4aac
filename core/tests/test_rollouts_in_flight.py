"""What the RL loop has in flight: no more than the executor takes, lost work again, nothing that nobody waits for."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from composer_core.config import RlStage
from composer_core.errors import TrainerError
from composer_core.events import EpisodeCancelled, EpisodeEnded, Event
from composer_core.ledger import Ledger
from composer_core.rollouts import RlLoop, RlParts, ledger_for
from composer_core.traces import encode
from composer_core.trees import TreeRef
from composer_core.types import (
    EpisodeRequest,
    EpisodeResult,
    GradingRef,
    Outcome,
    StepStats,
    Task,
    TaskView,
    TraceRef,
    TrainBatch,
    Verdict,
)
from composer_testing.fakes.runs import make_trace

TASKS = [
    Task(TaskView(id=f"t{number}", prompt="", workspace=TreeRef("0" * 64)), GradingRef("tests", "t"), "train")
    for number in range(5)
]
STAGE = RlStage(name="rl", steps=4, groups_per_step=2, group_size=3, max_staleness=2)


class World:
    """Executor, trainer and store in one; `ends` says how an episode ends, after how many rounds of the event loop."""

    def __init__(self, places: int = 100, ends: Callable[[EpisodeRequest], tuple[str, int]] | None = None) -> None:
        self._places, self._ends = places, ends or (lambda request: ("solved", 1))
        self.files: dict[str, bytes] = {}
        self.read: Counter[str] = Counter()
        """Traces that a step was made of."""
        self.now = self.most = 0
        self.cancelled: list[str] = []
        self.events: list[Event] = []
        self.steps: list[StepStats] = []
        self.tokens: dict[str, int] = {}
        """Sampled in an episode of a group; those of slow groups are long."""
        self.slow: dict[str, int] = {}
        """Group to steps that are trained before its episodes end."""

    def places(self) -> int:
        return self._places

    async def submit(self, request: EpisodeRequest) -> EpisodeResult:
        self.now += 1
        self.most = max(self.most, self.now)
        how, rounds = self._ends(request)
        try:
            for _ in range(rounds):
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                while len(self.steps) < self.slow.get(request.group, 0):
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(request.group)
            raise
        finally:
            self.now -= 1
        if how != "solved":
            return EpisodeResult(request.key, request.group, None, Verdict(Outcome.VOID, how))
        trace = make_trace(request.key, solved=True, version=0)
        trace = trace if request.group in self.slow else attrs.evolve(trace, turns=trace.turns[:2])
        self.tokens[request.group] = trace.sampled_tokens()
        self.files[request.key.episode_id] = encode(trace)
        ref, stats = TraceRef(request.key.episode_id, ""), {"tokens": float(trace.sampled_tokens())}
        return EpisodeResult(request.key, request.group, ref, trace.verdict, reward=1, stats=stats)

    def get(self, uri: str) -> bytes:
        assert threading.current_thread() is not threading.main_thread(), "megabytes are read beside the event loop"
        self.read[uri] += 1
        return self.files[uri]

    async def step(self, batch: TrainBatch) -> StepStats:
        await asyncio.sleep(0)
        return StepStats({})

    def stats(self) -> dict[str, float]:
        return {"workers": 3.0}

    def run(self, stage: RlStage = STAGE) -> Ledger:
        """The stage, to its end."""
        world: Any = self
        parts = RlParts(
            stage=stage,
            algorithm_id="tests/none",
            tasks=TASKS,
            executor=world,
            trainer=world,
            store=world,
            group_rewards=(),
            run_seed=1,
            limits={},
            emit=self.events.append,
            journal=lambda entries: None,
        )
        ledger = ledger_for(stage, TASKS, seed=1, deterministic=False)

        async def keep(stats: StepStats) -> None:
            self.steps.append(stats)

        asyncio.run(RlLoop(parts, ledger, keep).run())
        return ledger


@pytest.mark.parametrize("places", [1, 5, 7, 1000])
def test_no_more_is_in_flight_than_the_executor_has_places_and_all_of_them_are_used(places: int) -> None:
    world = World(places, lambda request: ("solved", 1 + request.key.attempt % 5))
    world.run()
    capacity = 3 * STAGE.groups_per_step * STAGE.group_size
    assert world.most == min(places, capacity)
    assert len(world.read) == STAGE.steps * STAGE.groups_per_step * STAGE.group_size


def test_lost_episodes_are_run_again_and_the_same_is_trained_as_without_losses() -> None:
    source = random.Random(0)
    calm, troubled = World(), World(ends=lambda request: (source.choice(["solved", "lost"]), source.randrange(9)))
    ledgers = [world.run(attrs.evolve(STAGE, max_losses=100)) for world in (calm, troubled)]
    assert [ledger.counters["lost"] > 0 for ledger in ledgers] == [False, True]
    assert ledgers[1].counters["void"] == 0, "what was lost is no void"
    assert troubled.read == calm.read


def test_a_task_that_always_kills_its_process_is_given_up_and_the_run_goes_on() -> None:
    world = World(ends=lambda request: ("lost" if request.task.id == "t0" else "solved", 1))
    ledger = world.run(attrs.evolve(STAGE, max_losses=2, refills=1))
    assert ledger.counters["dropped/void"] > 0
    assert ledger.counters["void/lost"] >= 2 * ledger.counters["dropped/void"]
    assert not any(uri.startswith("t0") for uri in world.read)


def test_when_every_process_keeps_vanishing_the_run_stops_and_names_the_cause() -> None:
    world = World(ends=lambda request: ("lost", 1))
    with pytest.raises(TrainerError, match="episodes in a row were void") as stopped:
        world.run(attrs.evolve(STAGE, max_losses=1, max_voids_in_a_row=5))
    assert "'lost'" in str(stopped.value)


def test_episodes_of_a_group_that_cannot_be_trained_are_cancelled() -> None:
    doomed = {"rl:0"}

    def ends(request: EpisodeRequest) -> tuple[str, int]:
        if request.group not in doomed:
            return "solved", 1
        return ("host", 1) if request.key.attempt % STAGE.group_size == 0 else ("solved", 10**9)

    world = World(ends=ends)
    ledger = world.run(attrs.evolve(STAGE, refills=0))
    assert world.cancelled == ["rl:0", "rl:0"]
    assert ledger.counters["cancelled"] == 2
    told = [event.episode_id for event in world.events if isinstance(event, EpisodeCancelled)]
    ended = [event.result.key.episode_id for event in world.events if isinstance(event, EpisodeEnded)]
    assert sorted(told) == [f"rl-{ledger.task_of(0)}-{slot}" for slot in (1, 2)], "of each that has no other end"
    assert not set(told) & set(ended)
    assert world.now == 0


def test_slow_groups_are_cancelled_where_more_are_sampled_than_needed() -> None:
    stage = attrs.evolve(STAGE, max_staleness=0, oversample=1)
    slow = {f"rl:{number}" for number in (0, 4, 7)}
    world = World(ends=lambda request: ("solved", 10**9 if request.group in slow else 1))
    ledger = world.run(stage)
    assert set(world.cancelled) >= slow
    assert ledger.counters["trained_groups"] == stage.steps * stage.groups_per_step


def test_where_long_episodes_are_dropped_the_lengths_generated_and_trained_say_so() -> None:
    stage = attrs.evolve(STAGE, steps=30, staleness="drop", max_staleness=1, groups_per_step=1)
    world = World()
    world.slow["rl:0"] = 5
    ledger = world.run(stage)
    assert ledger.counters["dropped/stale"] == 1
    metrics = [stats.metrics for stats in world.steps]
    long, short = world.tokens["rl:0"], world.tokens["rl:1"]
    assert long > short
    assert max(step["tokens_p99_generated"] for step in metrics if "tokens_p99_generated" in step) == long
    assert max(step["tokens_p99_trained"] for step in metrics) == short
    assert metrics[-1]["dropped_tokens"] == 3 * long


def test_an_executor_that_cancels_an_episode_by_itself_has_lost_it() -> None:
    calls: Counter[str] = Counter()
    world = World()
    submit = world.submit

    async def cancels(request: EpisodeRequest) -> EpisodeResult:
        calls[request.key.episode_id] += 1
        if calls[request.key.episode_id] == 1:
            raise asyncio.CancelledError
        return await submit(request)

    world.submit = cancels  # type: ignore[method-assign]
    ledger = world.run()
    assert ledger.counters["lost"] == len(calls)
    assert set(calls.values()) == {2}
