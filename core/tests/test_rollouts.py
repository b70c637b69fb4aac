"""The RL loop with max_staleness: what is admitted, and when, around a slow publication."""

import asyncio
from typing import Any

import attrs
import pytest

from composer_core.config import RlStage
from composer_core.errors import PluginFault
from composer_core.events import FaultRecorded, GroupScored
from composer_core.records import RewardSpec
from composer_core.rollouts import RlLoop, RlParts, ledger_for
from composer_core.scoring import Reward
from composer_core.traces import encode
from composer_core.trees import TreeRef
from composer_core.types import (
    EpisodeRequest,
    EpisodeResult,
    GradingRef,
    Outcome,
    Score,
    StepStats,
    Task,
    TaskView,
    Trace,
    TraceRef,
    TrainBatch,
    Verdict,
)
from composer_testing.fakes.runs import make_trace

TASKS = [
    Task(TaskView(id=f"t{number}", prompt="", workspace=TreeRef("0" * 64)), GradingRef("tests", "t"), "train")
    for number in range(5)
]


class World:
    """An executor, a trainer and a store in one; notes which version is served when an episode is submitted."""

    def __init__(self) -> None:
        self.published = 0
        self.publishing = False
        self.journaled_while_publishing: list[Any] = []
        self.served: dict[str, set[int]] = {}

    async def submit(self, request: EpisodeRequest) -> EpisodeResult:
        self.served.setdefault(request.group, set()).add(self.published)
        await asyncio.sleep(0.01 * (request.key.attempt % 3))  # some end while weights are being published
        return EpisodeResult(key=request.key, group=request.group, trace=None, verdict=Verdict(Outcome.SOLVED))

    async def step(self, batch: TrainBatch) -> StepStats:
        await asyncio.sleep(0.002)
        return StepStats({})

    def places(self) -> int:
        return 1000

    def stats(self) -> dict[str, float]:
        return {}

    def journal(self, entries: list[dict[str, Any]]) -> None:
        if self.publishing:
            self.journaled_while_publishing += entries


def parts_of(world: Any, stage: RlStage, **changes: Any) -> RlParts:
    """The parts of a stage whose executor, trainer and store are `world`."""
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
        emit=lambda event: None,
        journal=lambda entries: None,
    )
    return attrs.evolve(parts, **changes)


def test_nothing_is_admitted_or_journaled_between_a_step_and_its_publication() -> None:
    world: Any = World()
    stage = RlStage(name="rl", steps=6, groups_per_step=2, group_size=2, max_staleness=1)
    ledger = ledger_for(stage, TASKS, seed=1, deterministic=False)
    versions: dict[str, int] = {}

    async def publish(stats: StepStats) -> None:
        world.publishing = True
        await asyncio.sleep(0.02)  # many episodes end meanwhile
        world.published, world.publishing = ledger.version, False

    parts = parts_of(world, stage, journal=lambda entries: (world.journal(entries), note(entries)))

    def note(entries: list[dict[str, Any]]) -> None:
        versions.update({f"rl:{e['group']}": e["version"] for e in entries if e["kind"] == "admit"})

    asyncio.run(RlLoop(parts, ledger, publish).run())
    assert world.published == 6
    assert not world.journaled_while_publishing
    assert versions
    for group, version in versions.items():
        assert min(world.served[group]) >= version, "a group's version is a lower bound of its tokens'"


def test_group_rewards_are_added_and_leave_written_traces_alone() -> None:
    """A trace is what its checksum says: scores that need the whole group are told by the event."""
    world, emitted, batches = Store(), [], []
    reward = Reward("tests/first", "1", RewardSpec(name="first", function="", scope="group"), first_alone, None, 0.5)

    async def step(batch: TrainBatch) -> StepStats:
        batches.append(batch)
        return StepStats({})

    world.step = step
    stage = RlStage(name="rl", steps=1, groups_per_step=1, group_size=2)
    ledger = ledger_for(stage, TASKS, seed=1, deterministic=False)
    parts = parts_of(world, stage, group_rewards=(reward,), emit=emitted.append)
    stats: list[StepStats] = []

    async def after(found: StepStats) -> None:
        stats.append(found)

    asyncio.run(RlLoop(parts, ledger, after).run())
    assert world.puts == 2
    (scored,) = (event for event in emitted if isinstance(event, GroupScored))
    assert sorted(scored.rewards) == [1.0, 1.5]
    assert sorted(row[0].value for row in scored.group_scores) == [0.0, 1.0]
    assert sorted(batches[0].groups[0].rewards) == [1.0, 1.5]
    hinted = sorted((sequence.episode, hint.text) for sequence in batches[0].sequences for hint in sequence.hints)
    assert hinted == [(0, "not 0"), (1, "not 1")], "what it says of turns goes to the trainer"
    assert stats[0].metrics["solve_rate"] == 1.0
    assert stats[0].metrics["turns_mean"] == 4.0
    assert (stats[0].metrics["reward/tests/first"], stats[0].metrics["reward_std/tests/first"]) == (0.25, 0.25)


def test_group_rewards_see_the_task_under_the_limits_that_its_episodes_had() -> None:
    """A price is a share of what the limits allow, so with other limits it is another price."""
    world, seen = Store(), []

    def sees(group: Any, task: TaskView) -> list[float]:
        seen.append((task.id, task.limits.turns, len(group)))
        return [0.0] * len(group)

    async def step(batch: TrainBatch) -> StepStats:
        return StepStats({})

    async def after(found: StepStats) -> None: ...

    world.step = step
    stage = RlStage(name="rl", steps=1, groups_per_step=1, group_size=2)
    reward = Reward("tests/sees", "1", RewardSpec(name="sees", function="", scope="group"), sees, None, 0.5)
    parts = parts_of(world, stage, group_rewards=(reward,), limits={"turns": 3})
    asyncio.run(RlLoop(parts, ledger_for(stage, TASKS, seed=1, deterministic=False), after).run())
    ((task_id, turns, size),) = seen
    assert TASKS[0].view.limits.turns != 3, "the task's own are others"
    assert (task_id in {task.id for task in TASKS}, turns, size) == (True, 3, 2)


def test_a_group_whose_reward_breaks_is_void_and_the_step_trains_the_others() -> None:
    world, emitted, batches = Store(), [], []
    calls: list[int] = []

    def breaks_once(group: Any) -> list[float]:
        calls.append(len(group))
        if len(calls) == 1:
            raise ZeroDivisionError("no tokens")
        return [0.5] * len(group)

    async def step(batch: TrainBatch) -> StepStats:
        batches.append(batch)
        return StepStats({})

    async def after(found: StepStats) -> None:
        pass

    world.step = step
    stage = RlStage(name="rl", steps=1, groups_per_step=3, group_size=2)
    reward = Reward("tests/breaks", "1", RewardSpec(name="breaks", function="", scope="group"), breaks_once, None, 0.5)
    parts = parts_of(world, stage, group_rewards=(reward,), emit=emitted.append)
    asyncio.run(RlLoop(parts, ledger_for(stage, TASKS, seed=1, deterministic=False), after).run())
    assert (len(batches[0].groups), batches[0].episodes) == (2, 4)
    (fault,) = (event.fault for event in emitted if isinstance(event, FaultRecorded))
    assert (fault.where, fault.plugin) == ("reward", "tests/breaks")
    assert [event.voids for event in emitted if isinstance(event, GroupScored)] == [2, 0, 0]


def test_a_reward_that_breaks_for_every_group_of_a_step_stops_the_run() -> None:
    world = Store()

    def breaks(group: Any) -> list[float]:
        raise ZeroDivisionError("no tokens")

    async def after(found: StepStats) -> None:
        pass

    stage = RlStage(name="rl", steps=1, groups_per_step=2, group_size=2)
    reward = Reward("tests/breaks", "1", RewardSpec(name="breaks", function="", scope="group"), breaks, None, 0.5)
    parts = parts_of(world, stage, group_rewards=(reward,))
    with pytest.raises(PluginFault, match="tests/breaks"):
        asyncio.run(RlLoop(parts, ledger_for(stage, TASKS, seed=1, deterministic=False), after).run())


def test_a_reward_that_breaks_for_many_groups_in_a_row_stops_the_run_as_other_voids_do() -> None:
    world = Store()
    calls: list[int] = []

    def breaks_after_the_first(group: Any) -> list[float]:
        calls.append(len(group))
        if len(calls) > 1:
            raise ZeroDivisionError("no tokens")
        return [0.5] * len(group)

    async def after(found: StepStats) -> None:
        pass

    stage = RlStage(name="rl", steps=1, groups_per_step=4, group_size=2, max_voids_in_a_row=6)
    reward = Reward(
        "tests/breaks", "1", RewardSpec(name="b", function="", scope="group"), breaks_after_the_first, None, 1
    )
    parts = parts_of(world, stage, group_rewards=(reward,))
    with pytest.raises(PluginFault, match="tests/breaks"):
        asyncio.run(RlLoop(parts, ledger_for(stage, TASKS, seed=1, deterministic=False), after).run())


class Store(World):
    """A world whose episodes end with written traces."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.puts = 0
        self.step: Any = None

    async def submit(self, request: EpisodeRequest) -> EpisodeResult:
        trace = make_trace(request.key, solved=True, version=0)
        uri = self.put(request.key.episode_id, encode(trace))
        return EpisodeResult(request.key, request.group, TraceRef(uri, ""), trace.verdict, reward=1.0)

    def put(self, uri: str, data: bytes) -> str:
        self.puts += 1
        self.files[uri] = data
        return uri

    def get(self, uri: str) -> bytes:
        return self.files[uri]


def first_alone(group: tuple[Trace, ...]) -> list[Score]:
    return [Score("", "", float(trace.key.attempt == 0), hints={0: f"not {trace.key.attempt}"}) for trace in group]
