"""A tape gives back what was sampled, number for number, for as long as the policy is asked the same."""

import asyncio
from itertools import product
from types import SimpleNamespace

import pytest
from attrs import evolve

from composer_core import Column
from composer_core.protocols import BuildContext
from composer_core.stores import FolderConfig, FolderStore
from composer_core.types import Completion, EpisodeResult, Outcome, SlotKey, Verdict
from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.plugin import composer_check
from composer_plugin_ray.tape import Tape, erase, folder

PROMPTS = ([1, 2], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8])
TURNS = tuple(
    Completion(
        Column.of("I32", [number, 9]),
        Column.of("F32", [-0.1 * number - 0.3, -1e-7]),
        ((3, 1), (4 + number, 1)),
        "length" if number == 2 else "stop",
        cache_version=number,
        routes=None if number == 1 else Column("U8", (2, 1, 2), bytes([number, 1, 2, 3])),
    )
    for number in range(3)
)


@pytest.fixture
def store(tmp_path):
    return FolderStore(FolderConfig(), BuildContext(tmp_path))


def result(outcome=Outcome.SOLVED, cause=None):
    return EpisodeResult(SlotKey("task", 0), "group", None, Verdict(outcome, cause), stats={"turns": 3.0})


async def recorded(store, key):
    tape = Tape(store, key, plays=False)
    for ids, completion in zip(PROMPTS, TURNS, strict=True):
        assert await tape.play(ids) is None
        await tape.keep(ids, completion)
    return tape


def test_an_attempt_that_is_made_again_says_what_it_said_and_then_samples(store):
    async def main():
        lost = await recorded(store, f"{folder()}/e")
        again = Tape(store, lost.key, plays=True)
        assert [await again.play(ids) for ids in PROMPTS] == [*TURNS]
        assert await again.play([*PROMPTS[-1], 10]) is None
        assert again.played == 3

    asyncio.run(main())


def test_a_tape_ends_where_the_policy_is_asked_something_else_and_what_is_said_then_takes_its_place(store):
    async def main():
        lost = await recorded(store, f"{folder()}/e")
        again = Tape(store, lost.key, plays=True)
        assert await again.play(PROMPTS[0]) == TURNS[0]
        other = [1, 2, 3, 4, 77]
        assert await again.play(other) is None
        await again.keep(other, TURNS[2])
        assert await again.play(PROMPTS[2]) is None, "what came after is of another episode"
        third = Tape(store, lost.key, plays=True)
        assert [await third.play(ids) for ids in (PROMPTS[0], other)] == [TURNS[0], TURNS[2]]

    asyncio.run(main())


def test_a_lost_attempt_leaves_its_tape_and_any_other_leaves_nothing(store):
    async def main():
        tape = await recorded(store, f"{folder()}/e")
        lost = result(Outcome.VOID, "lost")
        assert await tape.ended(lost) is lost
        again = Tape(store, tape.key, plays=True)
        for ids in PROMPTS:
            await again.play(ids)
        assert (await again.ended(result())).stats == {"turns": 3.0, "played_turns": 3.0}
        assert store.list("tapes/") == []

    asyncio.run(main())


def test_no_life_of_the_controller_plays_the_tapes_of_another(store):
    async def main():
        lost = await recorded(store, f"{folder()}/e")
        assert await Tape(store, f"{folder()}/e", plays=True).play(PROMPTS[0]) is None
        erase(store)
        assert await evolve(lost, turn=0, plays=True).play(PROMPTS[0]) is None

    asyncio.run(main())


def test_check_refuses_tapes_of_a_deterministic_run():
    for deterministic, keeps in product((False, True), repeat=2):
        run = SimpleNamespace(
            settings={"executors": [("ray/ray", RayConfig(keep_turns=keeps))]},
            config=SimpleNamespace(deterministic=deterministic),
        )
        found = [problem.where for problem in composer_check(run)]
        assert found == (["executor.keep_turns"] if deterministic and keeps else [])


@pytest.mark.parametrize("name", ["worker/", "replica/"])
def test_an_episode_that_lost_its_process_goes_on_from_the_turn_it_was_at(run, name):
    long = ("sampler.looks=12", "sampler.turn_s=0.05", "limits.turns=20", "limits.tokens=2000", "limits.wall_s=60")
    few = ('stages=[{name="rl",kind="rl",steps=3,groups_per_step=2,group_size=4}]', "evaluations=[]")
    one = ("executor.workers=1", "executor.sampler_replicas=1")  # so that it is the one that holds the episodes
    made = run("deterministic=false", "executor.keep_turns=true", *long, *few, *one).start()
    made.pid_of(name, step=1)
    made.until(lambda: [*(made.folder / "tapes").rglob("*.4")])
    made.kill(name, step=1)
    made.finish()
    ends = [event["result"] for event in made.events("EpisodeEnded")]
    again = [end for end in ends if end["stats"].get("played_turns")]
    assert again, "some episode was under way"
    assert all(end["verdict"]["outcome"] in ("solved", "failed") for end in again)
    assert all(end["stats"]["played_turns"] <= end["stats"]["turns"] for end in again)
    assert set(made.voids()) == {"lost"}
    store = FolderStore(FolderConfig(), BuildContext(run_dir=made.folder))
    assert not store.list("tapes/")  # the part that a killed process was writing has no name, and stays
