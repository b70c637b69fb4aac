"""What an episode has spent: the formula by hand, its limits, and that giving up never pays."""

import math

import pytest

from composer_core import TaskView, Tree
from composer_core.types import Limits
from composer_plugin_behavior.config import EffortConfig
from composer_plugin_behavior.effort import at_limits, cost, effort, spent
from composer_plugin_behavior.plugin import composer_rewards
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.traces import attempt, called, turn

LIMITS = Limits(turns=10, tokens=1000, context_tokens=2000)
TASK = TaskView("task", "repair it", Tree(()).ref, LIMITS)
PLAIN = EffortConfig(k=0.01, q=1.0, thinking=1, call=1, result=0.5, message=1, calls=5, turns=20)
WORK = attempt(turn(called("grep"), tokens=40), turn(text="Done.", tokens=10), result_tokens=30)


class TestEffort(RewardContract):
    def build(self):
        return next(spec for spec in composer_rewards() if spec.name == "effort")

    def situations(self):
        x, limit = 40 + 10 + 0.5 * 30 + 5 + 2 * 20, 1000 + 0.5 * 2000 + 10 * (5 + 20)
        value = -math.log1p(0.01 * x) / math.log1p(0.01 * limit)
        return {
            "solved": Situation({"group": (WORK, WORK), "task": TASK, "config": PLAIN}, value),
            "failed": Situation({"group": (attempt(solved=False),) * 2, "task": TASK, "config": PLAIN}, -1.0),
        }


@pytest.mark.parametrize(
    ("q", "by_hand"),
    [
        (0.0, 300.0),
        (0.5, (math.sqrt(4.0) - 1) / (0.01 * 0.5)),
        (1.0, math.log(4.0) / 0.01),
        (2.0, (1 - 1 / 4.0) / 0.01),
    ],
    ids=["linear", "root", "logarithm", "bounded"],
)
def test_the_cost_is_that_of_the_formula(q, by_hand):
    assert cost(300.0, 0.01, q) == pytest.approx(by_hand)
    assert cost(0.0, 0.01, q) == 0.0


@pytest.mark.parametrize("off", [1e-4, -1e-6, 1e-9, -1e-13])
def test_the_cost_goes_over_into_its_limit_where_q_is_one(off):
    assert cost(300.0, 0.01, 1 + off) == pytest.approx(cost(300.0, 0.01, 1.0), rel=10 * abs(off) + 1e-12)


def test_above_one_the_cost_never_exceeds_its_bound():
    assert cost(1e12, 0.01, 3.0) == pytest.approx(1 / (0.01 * 2))


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 2.0])
def test_the_slope_is_a_power_of_what_was_spent(q):
    x, step = 250.0, 1e-3
    slope = (cost(x + step, 0.01, q) - cost(x - step, 0.01, q)) / (2 * step)
    assert slope == pytest.approx((1 + 0.01 * x) ** -q, rel=1e-5)


def test_an_all_failed_group_of_unequal_lengths_is_flat():
    group = [attempt(*[turn(called("grep"), tokens=n)] * n, solved=False) for n in (1, 5, 9)]
    assert {one.value for one in effort(group, TASK, PLAIN)} == {-1.0}


def test_whoever_solves_it_beyond_the_limit_is_charged_no_more_than_whoever_fails():
    long = attempt(*[turn(called("grep"), tokens=100)] * 30, result_tokens=500)
    assert [one.value for one in effort([long], TASK, PLAIN)] == [-1.0]


def test_the_same_reads_in_one_turn_cost_less_than_in_three():
    apart = attempt(*[turn(called("read_file"), tokens=10)] * 3)
    together = attempt(turn(*[called("read_file")] * 3, tokens=30), result_tokens=15)
    costs = [one.value for one in effort([apart, together], TASK, PLAIN)]
    assert costs[0] < costs[1]


def test_the_tokens_of_a_turn_are_divided_by_characters_and_none_is_lost():
    words = turn(called("grep", {"p": "xx"}), text="a" * 15, tokens=60)
    thought = turn(text="<think>" + "b" * 85 + "</think>" + "c" * 100, tokens=20)
    found = spent(attempt(words, thought, turn(called("finish", {"m": "z"}), tokens=7)), ("finish",))
    call = len("grep") + len('{"p": "xx"}')
    assert found["thinking_tokens"] == pytest.approx(60 * 15 / (15 + call) + 10)
    assert found["call_tokens"] == pytest.approx(60 * call / (15 + call))
    assert found["message_tokens"] == pytest.approx(10 + 7)


def test_results_of_another_branch_are_not_taken_for_results():
    from attrs import evolve

    trace = attempt(turn(called("grep")), turn(called("grep")))
    assert spent(trace, ())["result_tokens"] == 5
    apart = evolve(trace, turns=(trace.turns[0], evolve(trace.turns[1], branch=1)))
    assert spent(apart, ())["result_tokens"] == 0


def test_a_turn_without_words_or_readable_calls_is_charged_too():
    broken = attempt(turn(called("", problem="malformed"), tokens=50), turn(tokens=8))
    found = spent(broken, ())
    assert (found["call_tokens"], found["message_tokens"]) == (50, 8)


def test_the_limit_is_priced_at_the_dearest_token():
    assert at_limits(LIMITS, EffortConfig(thinking=3, call=1, message=2, result=0, calls=0, turns=1)) == 3010
