"""Calls that could not be executed cost, by number and of whatever kind."""

from composer_plugin_behavior.broken_calls import HINT_CHARS, broken_calls
from composer_plugin_behavior.config import BrokenCallsConfig
from composer_plugin_behavior.plugin import composer_rewards
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.traces import attempt, called

PLAIN = BrokenCallsConfig(most=4)
GOOD, KINDS = called("grep"), ("malformed", "truncated", "unknown_tool", "bad_arguments")


def broken(problem="unknown_tool"):
    return called("gerp", problem=problem)


class TestBrokenCalls(RewardContract):
    def build(self):
        return next(spec for spec in composer_rewards() if spec.name == "broken_calls")

    def situations(self):
        def of(value, *calls, solved=True):
            return Situation({"group": (attempt(calls, solved=solved),), "config": PLAIN}, value)

        return {
            "none": of(0.0, GOOD, GOOD),
            **{kind: of(-0.25, GOOD, broken(kind)) for kind in KINDS},
            "one of each": of(-1.0, *map(broken, KINDS)),
            "more than cost everything": of(-1.0, *[broken()] * 9),
            "nothing done": of(-1.0, solved=False),
            "not solved": of(-1.0, GOOD, solved=False),
        }


def test_more_good_calls_do_not_thin_out_a_broken_one():
    few, many = (attempt([broken()], *[[GOOD]] * count) for count in (1, 30))
    found = broken_calls([few, many], PLAIN)
    assert found[0].value == found[1].value == -0.25


def test_each_problem_is_told_apart_also_where_the_task_was_not_solved():
    (found,) = broken_calls([attempt([broken("malformed")] * 2, [broken()], solved=False)], PLAIN)
    assert (found.value, found.parts) == (-1.0, {"malformed": 2.0, "unknown_tool": 1.0})


def test_what_was_wrong_with_a_turn_is_a_hint_for_it_also_where_the_task_was_not_solved():
    turns = [GOOD], [GOOD, called("gerp", problem="unknown_tool", detail="did you mean 'grep'?")]
    for solved in (True, False):
        (found,) = broken_calls([attempt(*turns, solved=solved)], PLAIN)
        assert list(found.hints) == [1]
        assert "gerp: did you mean 'grep'?" in found.hints[1]


def test_a_hint_is_short_whatever_the_policy_wrote():
    (found,) = broken_calls([attempt([called("x" * 10_000, problem="unknown_tool", detail="unknown tool")])], PLAIN)
    assert len(found.hints[0]) <= HINT_CHARS
