"""To-dos that are opened are closed; a list that is thrown away is not."""

import json

from composer_plugin_behavior.config import TodosConfig
from composer_plugin_behavior.plugin import composer_rewards
from composer_plugin_behavior.todos import todos
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.traces import attempt, called

PLAIN = TodosConfig()


def write(merge=None, **statuses):
    items = [{"id": id, "content": id, "status": status} for id, status in statuses.items()]
    return [called("todo_write", {"items": items} | ({} if merge is None else {"merge": merge}))]


OPEN = write(a="pending", b="in_progress")


class TestTodos(RewardContract):
    def build(self):
        return next(spec for spec in composer_rewards() if spec.name == "todos")

    def situations(self):
        def of(value, *turns, solved=True):
            return Situation({"group": (attempt(*turns, solved=solved),), "config": PLAIN}, value)

        return {
            "none opened": of(0.0, [called("grep")]),
            "left open": of(-1.0, OPEN),
            "one closed": of(-0.5, OPEN, write(True, a="completed")),
            "all closed": of(0.0, OPEN, write(a="completed", b="completed")),
            "cancelled": of(0.0, OPEN, write(a="completed", b="cancelled")),
            "thinned out by what was done before it was written": of(
                -1.0, OPEN, write(True, c="completed", d="completed")
            ),
            "emptied at the end": of(-1.0, OPEN, write()),
            "dropped and taken up again": of(-0.5, OPEN, write(a="completed"), write(True, b="pending")),
            "not solved": of(-1.0, OPEN, write(a="completed", b="completed"), solved=False),
        }


def test_calls_that_failed_wrote_nothing():
    failed = [called("todo_write", {"items": [{"id": "c"}]}, ok=False)]
    (found,) = todos([attempt(OPEN, failed, write(a="completed", b="completed"))], PLAIN)
    assert (found.value, found.parts) == (0.0, {"opened": 2.0, "open": 0.0, "dropped": 0.0})


def test_a_list_that_a_format_spells_as_text_is_read_all_the_same():
    items = [{"id": "a", "status": "pending"}]
    for text in (json.dumps(items), repr(items)):
        opened = [called("todo_write", {"items": text})]
        closed = [called("todo_write", {"items": text.replace("pending", "completed"), "merge": "true"})]
        assert [one.value for one in todos([attempt(opened), attempt(opened, closed)], PLAIN)] == [-1.0, 0.0]
