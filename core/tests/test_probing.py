"""Probes: sampled where a batch holds nothing that may be compared, by the version just published, and in time."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs

from composer_core.config import RlStage
from composer_core.errors import SamplerError
from composer_core.events import PARITY_PROBE
from composer_core.probing import EPISODES, TOKENS
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
    TrainSequence,
    Verdict,
)
from composer_testing.fakes.runs import make_trace

TASKS = [
    Task(TaskView(id=f"t{number}", prompt="", workspace=TreeRef("0" * 64)), GradingRef("tests", "t"), "train")
    for number in range(EPISODES + 1)
]
STAGE = RlStage(name="rl", steps=6, groups_per_step=1, group_size=2)


class World:
    """Executor, trainer and store in one; `old(step)` says how far back the version of a step's episodes is."""

    def __init__(self, old: Any = lambda step: 1) -> None:
        self.old = old
        self.version = 0
        """Published."""
        self.files: dict[str, bytes] = {}
        self.batches: list[TrainBatch] = []
        self.probes: list[tuple[EpisodeRequest, int]] = []
        """And how many batches were trained when each was asked for."""
        self.fails = False
        self.now = 0
        """Probes under way."""

    def places(self) -> int:
        return 100

    def stats(self) -> dict[str, float]:
        return {}

    async def submit(self, request: EpisodeRequest) -> EpisodeResult:
        await asyncio.sleep(0)
        return self._made(request, max(0, self.version - self.old(self.version)))

    async def attempt(self, request: EpisodeRequest, purpose: str) -> EpisodeResult:
        assert purpose == PARITY_PROBE
        self.probes.append((request, len(self.batches)))
        self.now += 1
        try:
            await asyncio.sleep(0.001)
            if self.fails:
                raise SamplerError("no process is left")
            return self._made(request, self.version)
        finally:
            self.now -= 1

    def _made(self, request: EpisodeRequest, version: int) -> EpisodeResult:
        trace = make_trace(request.key, solved=True, version=version)
        trace = attrs.evolve(trace, turns=tuple(attrs.evolve(turn, cache_version=version) for turn in trace.turns))
        self.files[request.key.episode_id] = encode(trace)
        verdict = Verdict(Outcome.SOLVED if request.graded else Outcome.UNGRADED)
        return EpisodeResult(request.key, request.group, TraceRef(request.key.episode_id, ""), verdict, reward=1)

    def get(self, uri: str) -> bytes:
        return self.files[uri]

    async def step(self, batch: TrainBatch) -> StepStats:
        self.batches.append(batch)
        return StepStats({})

    def run(self, *, compares: bool = True) -> None:
        world: Any = self
        parts = RlParts(
            stage=STAGE,
            algorithm_id="tests/none",
            tasks=TASKS,
            executor=world,
            trainer=world,
            store=world,
            group_rewards=(),
            run_seed=1,
            limits={},
            emit=lambda event: None,
            journal=lambda entries: None,
            attempt=self.attempt if compares else None,
        )
        ledger = ledger_for(STAGE, TASKS, seed=1, deterministic=False)

        async def publish(stats: StepStats) -> None:
            self.version = ledger.version

        asyncio.run(RlLoop(parts, ledger, publish).run())


def compared(rows: tuple[TrainSequence, ...]) -> int:
    return sum(sum(row.comparable.data) for row in rows if row.comparable)


def test_a_batch_without_a_comparable_token_is_given_rows_that_the_same_weights_have_sampled() -> None:
    world = World()
    world.run()
    assert [compared(batch.sequences) > 0 for batch in world.batches] == [True, *[False] * 5]
    assert [len(batch.probe) for batch in world.batches] == [0, *[EPISODES] * 5]
    assert all(compared((row,)) > 0 for batch in world.batches for row in batch.probe)
    for version, batch in enumerate(world.batches):
        assert {value for row in batch.probe for value, _ in row.versions if value >= 0} <= {version}


def test_a_probe_is_a_short_turn_with_the_same_noise_each_time_in_a_group_of_its_own() -> None:
    world = World()
    world.run()
    asked = [request for request, _ in world.probes]
    assert {(request.task.limits.turns, request.task.limits.tokens, request.graded) for request in asked} == {
        (1, TOKENS, False)
    }
    assert len({request.key.noise(1) for request in asked}) == EPISODES
    assert len({request.key.episode_id for request in asked}) == len({request.group for request in asked}) == len(asked)


def test_the_next_probe_is_sampled_from_the_publication_on_and_only_while_batches_need_one() -> None:
    world = World(old=lambda version: version in (2, 3))
    world.run()
    assert [bool(batch.probe) for batch in world.batches] == [False, False, True, True, False, False]
    asked = [trained for _, trained in world.probes[::EPISODES]]
    assert asked == [2, 3, 4], "the last of them was for nothing, and given up"
    assert world.now == 0


def test_a_trainer_that_compares_nothing_costs_no_probe() -> None:
    world = World()
    world.run(compares=False)
    assert len(world.batches) == STAGE.steps and not world.probes


def test_what_breaks_a_probe_breaks_the_run_and_leaves_none_behind() -> None:
    world = World()
    world.fails = True
    try:
        world.run()
    except SamplerError as error:
        assert "no process is left" in str(error)
    else:
        raise AssertionError("the run went on")
    assert world.now == 0
