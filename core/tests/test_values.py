"""Small values: columns, trees, noise, statistics, rewards, errors."""

import asyncio
import gc
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_core import statistics
from composer_core.columns import Column, pack, unpack
from composer_core.errors import ComposerError, ConfigError, PluginFault, SandboxGone, StoreError, boundary
from composer_core.noise import key_of, shuffled, uniform
from composer_core.records import RewardSpec, ToolSpec, resolve
from composer_core.scoring import Reward, excess_of_auxiliaries, spread, verdict_of
from composer_core.trees import File, Patch, Tree
from composer_core.types import Outcome, Score, SlotKey, Stop, Trace

paths = st.from_regex(r"[a-z]{1,3}(/[a-z]{1,3}){0,2}", fullmatch=True)
trees = st.dictionaries(paths, st.binary(max_size=8), max_size=5).map(Tree.of)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_a_column_gives_back_its_values(values):
    assert list(Column.of("I32", values).values()) == values


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.lists(st.floats(width=32, allow_nan=False)), max_size=4))
def test_packed_columns_unpack_equal(rows):
    columns = {name: Column.of("F32", values) for name, values in rows.items()}
    assert unpack(pack(columns, {"a": "b"})) == (columns, {"a": "b"})


@given(st.binary(max_size=64))
def test_damaged_column_files_are_refused(blob):
    whole = pack({"x": Column.of("I32", range(9))}, {})
    for damaged in (blob, whole[:-1], whole[: len(whole) // 2]):
        with pytest.raises(StoreError):
            unpack(damaged)


@given(trees, trees)
def test_a_patch_turns_one_tree_into_the_other(before, after):
    patch = Patch.between(before, after)
    assert patch.apply(before) == after
    assert bool(patch) == (before != after)
    assert (before.ref == after.ref) == (before == after)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a"])
def test_a_tree_holds_no_path_that_leaves_it(path):
    with pytest.raises(ConfigError):
        File(path, b"")


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6))
def test_noise_is_a_pure_function_in_the_unit_interval(key, position):
    value = uniform(key, position)
    assert 0 <= value < 1
    assert value == uniform(key, position)


def test_noise_is_spread_evenly():
    key = key_of("spread")
    cells = [0] * 10
    for position in range(20_000):
        cells[int(uniform(key, position) * 10)] += 1
    assert max(abs(cell - 2000) for cell in cells) < 200


def test_an_attempt_has_one_noise_at_every_moment():
    key = SlotKey("task", 3, "eval-main")
    assert key.noise(1) == SlotKey("task", 3, "eval-main", "after").noise(1)
    assert len({key.noise(1), key.noise(2), SlotKey("task", 4, "eval-main").noise(1)}) == 3


@given(st.lists(st.integers(), unique=True), st.integers(0, 2**64 - 1))
def test_shuffling_permutes(items, key):
    assert sorted(shuffled(items, key)) == sorted(items)


def test_pass_at_k_is_the_unbiased_estimator():
    rows = {"a": [1, 0, 0, 0], "b": [0, 0, 0, 0], "c": [1, 1]}
    assert statistics.pass_at_k(rows, 2) == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert statistics.pass_at_k(rows, 4) == pytest.approx(0.5)
    assert statistics.pass_at_k(rows, 5) is None


def test_the_interval_resamples_tasks_and_not_attempts():
    rows = {f"t{i}": [i % 2] * 100 for i in range(20)}
    low, high = statistics.interval(rows)
    assert low < 0.4
    assert high > 0.6
    assert statistics.solve_rate(rows) == 0.5


def test_the_paired_interval_of_equal_rows_is_zero():
    rows = {f"t{i}": [1, 0] for i in range(5)}
    assert statistics.paired_interval(rows, rows) == (0.0, 0.0, 0.0)


def reward(function, **fields):
    spec = RewardSpec(name="r", function=function, **{k: v for k, v in fields.items() if k != "weight"})
    return Reward("p/r", "1", spec, function, None, fields.get("weight", 1.0))


def test_a_reward_is_injected_by_name_clipped_and_weighted():
    score = asyncio.run(reward(lambda trace: trace * 10.0, weight=0.5).score({"trace": 3.0, "task": None}))
    assert (score.value, score.weight, score.parts) == (1.0, 0.5, {"clipped_from": 30.0})


def test_what_a_reward_says_of_turns_stays_on_its_score():
    said = Score("", "", 9.0, note="why", hints={2: "look first"})
    score = asyncio.run(reward(lambda trace: said).score({"trace": None, "task": None}))
    assert (score.reward, score.value, score.note, score.hints) == ("p/r", 1.0, "why", {2: "look first"})


def test_a_reward_that_asks_for_something_unknown_is_refused():
    with pytest.raises(ConfigError, match="tracce"):
        _ = reward(lambda tracce: 0.0).wants


@pytest.mark.parametrize(
    ("scope", "function", "words"),
    [
        ("episode", lambda group, task: 0.0, ["asks for group", 'declare scope="group"']),
        ("group", lambda group, patch: [0.0], ["asks for patch", "config, group, task", "leave the parameter out"]),
        ("group", lambda trace, grading: [0.0], ["asks for grading, trace"]),
    ],
)
def test_a_reward_that_asks_for_what_its_scope_cannot_give_is_refused(scope, function, words):
    with pytest.raises(ConfigError, match=f"reward p/r has scope '{scope}'") as caught:
        _ = reward(function, scope=scope).wants
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_the_graders_failure(value):
    with pytest.raises(ComposerError, match="not finite"):
        asyncio.run(reward(lambda trace: value).score({"trace": None}))


def test_a_pure_reward_scores_equal_patches_once_and_forgets_failures():
    calls = []

    async def grade(patch):
        calls.append(patch)
        await asyncio.sleep(0)
        if len(calls) == 1:
            raise OSError("first time")
        return 1.0

    class Task:
        id = "t"

    async def main():
        pure = reward(grade, pure=True)
        known = {"task": Task, "patch": Patch(deletes=("a",))}
        with pytest.raises(PluginFault):
            await pure.score(known)
        await asyncio.gather(*(pure.score(known) for _ in range(5)))
        await pure.score({"task": Task, "patch": Patch(deletes=("b",))})

    asyncio.run(main())
    assert len(calls) == 3


def test_a_grading_that_nobody_waits_for_any_more_leaves_no_report_of_how_it_ended():
    """An interrupted run closes its sandboxes, and hundreds of gradings fail in them."""
    reports, closed = [], asyncio.Event()

    async def grade(patch):
        await closed.wait()
        raise OSError("the sandboxes are closed")

    class Task:
        id = "t"

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        scoring = asyncio.ensure_future(reward(grade, pure=True).score({"task": Task, "patch": Patch()}))
        await asyncio.sleep(0.01)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        closed.set()
        await asyncio.sleep(0.01)
        gc.collect()  # a task reports what it failed with when it is forgotten

    asyncio.run(main())
    assert not reports


def test_a_pure_reward_remembers_its_latest_scores_only(monkeypatch):
    monkeypatch.setattr("composer_core.scoring.KEPT_SCORES", 2)
    calls = []

    async def grade(patch):
        calls.append(patch.deletes[0])
        return 1.0

    class Task:
        id = "t"

    async def main():
        pure = reward(grade, pure=True)
        for name in "abcca":
            assert (await pure.score({"task": Task, "patch": Patch(deletes=(name,))})).value == 1.0

    asyncio.run(main())
    assert calls == ["a", "b", "c", "a"]


def test_a_pure_reward_may_not_look_at_the_trace():
    with pytest.raises(ConfigError, match="pure"):
        _ = reward(lambda trace: 0.0, pure=True).wants


def test_the_outcome_alone_decides_the_verdict():
    outcome, style = (
        reward(lambda: 0.0, outcome=True),
        Reward("p/s", "1", RewardSpec(name="s", function=len), len, None, 1),
    )
    assert verdict_of([outcome, style], [Score("p/s", "1", 1.0), Score("p/r", "1", 0.5)]).outcome is Outcome.FAILED
    assert verdict_of([style], [Score("p/s", "1", 1.0)]).outcome is Outcome.UNGRADED


def test_auxiliaries_that_could_outweigh_the_outcome_are_found():
    outcome = reward(lambda: 0.0, outcome=True)
    small, large = (reward(lambda: 0.0, range=(-1.0, 1.0), weight=weight) for weight in (0.4, -0.6))
    assert excess_of_auxiliaries([outcome, small]) < 0
    assert excess_of_auxiliaries([outcome, large]) > 0


def test_each_rewards_part_is_told_with_its_deviation_within_groups():
    def trace(*values):
        scores = (Score("a/a", "", values[0]), *(Score("b/b", "", value, weight=0.5) for value in values[1:]))
        return Trace(SlotKey("t", 0), "g", (), (), (), Stop.FINISHED, scores=scores)

    groups = [[trace(1, 2.0), trace(0, 4.0)], [trace(1, 6.0, 2.0), trace(1, 6.0, 2.0)]]
    found = spread(groups)
    assert found["reward/a/a"] == pytest.approx(0.75)
    assert found["reward/b/b"] == pytest.approx((1 + 2 + 4 + 4) / 4), "chosen twice, it is one part"
    assert found["reward_std/a/a"] == pytest.approx((0.25 / 2) ** 0.5)
    assert found["reward_std/b/b"] == pytest.approx((0.25 / 2) ** 0.5), "groups may differ, their members count"
    assert spread([[trace(1), trace(0)]]) == {}


def test_the_boundary_attributes_plain_exceptions_once():
    with pytest.raises(PluginFault) as caught, boundary("tools", "p/t"), boundary("tools", "inner/t"):
        raise KeyError("x")
    assert (caught.value.kind, caught.value.plugin) == ("tools", "inner/t")
    with pytest.raises(SandboxGone), boundary("tools", "p/t"):
        raise SandboxGone("gone")


def test_errors_pickle_with_their_fields():
    error = ConfigError("bad", where="a.b", fix="do this", expected=None)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "bad\n  where:    a.b\n  fix:      do this"
    assert pickle.loads(pickle.dumps(SandboxGone("x"))).retryable is False


def test_errors_pickle_with_what_else_failed():
    error = SandboxGone("gone")
    error.add_note("and the store could not be closed")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["and the store could not be closed"]


def test_a_factory_that_names_nothing_is_refused():
    with pytest.raises(ComposerError, match="does not exist"):
        resolve("composer_core.records:Nothing")
    assert resolve("composer_core.records:ToolSpec") is ToolSpec
