"""To-dos that are opened are closed; a list that is thrown away is not."""

from composer_plugin_behavior.plugin import composer_rewards
from composer_plugin_behavior.todos import todos
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.traces import attempt, called


def write(**statuses):
    """A call after which the list is so, however it was written."""
    return [called("todo_write", data={"statuses": statuses})]


OPEN = write(a="pending", b="in_progress")


class TestTodos(RewardContract):
    def build(self):
        return next(spec for spec in composer_rewards() if spec.name == "todos")

    def situations(self):
        def of(value, *turns, solved=True):
            return Situation({"group": (attempt(*turns, solved=solved),)}, value)

        return {
            "none opened": of(0.0, [called("grep")]),
            "left open": of(-1.0, OPEN),
            "one closed": of(-0.5, OPEN, write(a="completed", b="pending")),
            "all closed": of(0.0, OPEN, write(a="completed", b="completed")),
            "cancelled": of(0.0, OPEN, write(a="completed", b="cancelled")),
            "thinned out by what was done before it was written": of(
                -1.0, OPEN, write(a="pending", b="pending", c="completed", d="completed")
            ),
            "emptied at the end": of(-1.0, OPEN, write()),
            "dropped and taken up again": of(-0.5, OPEN, write(a="completed"), write(a="completed", b="pending")),
            "not solved": of(-1.0, OPEN, write(a="completed", b="completed"), solved=False),
        }


def test_calls_that_failed_or_say_nothing_of_statuses_wrote_nothing():
    others = [called("todo_write", ok=False), called("grep", data={"matches": 1})]
    (found,) = todos([attempt(OPEN, others, write(a="completed", b="completed"))])
    assert (found.value, found.parts) == (0.0, {"opened": 2.0, "open": 0.0, "dropped": 0.0})


def test_what_the_tool_made_of_a_call_counts_and_not_how_the_call_was_spelled():
    spelled = {"items": ['{"id": "a", "status": "completed"}'], "merge": " true"}
    merged = [called("todo_write", spelled, data={"statuses": {"a": "completed", "b": "in_progress"}})]
    (found,) = todos([attempt(OPEN, merged)])
    assert found.parts == {"opened": 2.0, "open": 1.0, "dropped": 0.0}
