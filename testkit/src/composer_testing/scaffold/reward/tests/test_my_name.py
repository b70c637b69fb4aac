"""The reward keeps its kind's contract, and pays what it is meant to pay."""

import pytest

from composer_core import TaskView, Trace, Tree
from composer_core.types import Limits, Outcome, SlotKey, Stop, Turn, Verdict
from composer_plugin_my_name import plugin
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.rewards import RewardContract, Situation

TASK = TaskView("task", "repair it", Tree(()).ref, Limits(tokens=100))


def attempt(outcome: Outcome, *turn_tokens: int) -> Trace:
    """A trace whose turns sampled so many tokens."""
    turns = tuple(Turn(index, 0, 0, tokens, "", ()) for index, tokens in enumerate(turn_tokens))
    return Trace(SlotKey("task", 0), "group", (), (), turns, Stop.FINISHED, Verdict(outcome))


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(RewardContract):
    def build(self):
        (spec,) = plugin.composer_rewards()
        return spec

    def situations(self):
        def of(value, *group):
            return Situation({"group": group, "task": TASK}, value)

        return {
            "short": of(0.9, attempt(Outcome.SOLVED, 10), attempt(Outcome.SOLVED, 4, 6)),
            "at the limit": of(0.0, attempt(Outcome.SOLVED, 60, 40)),
            "mixed": of(None, attempt(Outcome.SOLVED, 10), attempt(Outcome.FAILED, 10)),
        }


def test_of_two_that_solved_the_shorter_is_paid_more():
    long, short = plugin.my_name([attempt(Outcome.SOLVED, 80), attempt(Outcome.SOLVED, 20)], TASK)
    assert (long, short) == pytest.approx((0.2, 0.8))


def test_failures_are_paid_alike_whatever_their_length():
    group = [attempt(Outcome.FAILED, tokens) for tokens in (0, 1, 100)]
    assert plugin.my_name(group, TASK) == [0.0, 0.0, 0.0]
