"""Everything in the shell costs; a few commands among other tools do not."""

from composer_plugin_behavior.config import TerminalOnlyConfig
from composer_plugin_behavior.plugin import composer_rewards
from composer_testing.contracts.rewards import RewardContract, Situation
from composer_testing.fakes.traces import attempt, called

PLAIN = TerminalOnlyConfig(free=0.5, least_calls=4)
SHELL, LOOK, END, TODO = (called(name) for name in ("run_terminal", "grep", "finish", "todo_write"))


class TestTerminalOnly(RewardContract):
    def build(self):
        return next(spec for spec in composer_rewards() if spec.name == "terminal_only")

    def situations(self):
        def of(value, *calls, solved=True):
            return Situation({"group": (attempt(calls, solved=solved),), "config": PLAIN}, value)

        return {
            "half of them": of(0.0, SHELL, SHELL, LOOK, LOOK),
            "three of four": of(-0.5, SHELL, SHELL, SHELL, LOOK),
            "all of them": of(-1.0, *[SHELL] * 4),
            "calls that do nothing hide nothing": of(-1.0, *[SHELL] * 4, TODO, TODO, TODO, END),
            "too few to tell": of(0.0, *[SHELL] * 3, END),
            "not solved": of(-1.0, LOOK, LOOK, LOOK, LOOK, solved=False),
        }
