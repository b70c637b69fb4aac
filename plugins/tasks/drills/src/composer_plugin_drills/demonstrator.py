"""The sampler `drills/demonstrator`: shows how work is done, with habits that are worth unlearning.

It explores and tests like a careful person: reads the named file (or runs the tests first to find it), edits one
line, runs the tests, finishes. Which repair it makes is another matter. For a stated set of operators its usual
repair is a wrong one, the same each time (`Drill.wrong`), and it finishes although the tests fail; so the most
probable action of a policy trained on these traces is wrong there, and reinforcement learning has something to teach
that sharpening alone does not. It uses trusted task data and no model.
"""

from __future__ import annotations

from composer_core.errors import ConfigError, did_you_mean
from composer_core.noise import key_of, uniform
from composer_core.protocols import BuildContext
from composer_core.types import GenerateRequest, ParsedTurn
from composer_plugin_drills.config import DemonstratorConfig
from composer_plugin_drills.drills import Drill
from composer_plugin_drills.operators import OPERATORS
from composer_plugin_drills.prompts import names_file
from composer_plugin_drills.script import ScriptedSampler, check, edit, finish, read


class Demonstrator(ScriptedSampler):
    """Plays one of two repairs; see the module docstring."""

    def __init__(self, config: DemonstratorConfig, build: BuildContext) -> None:
        super().__init__(build)
        self.config = config
        for name in config.wrong_habits:
            if name not in OPERATORS:
                raise ConfigError(
                    f"no operator {name!r}",
                    who="drills/demonstrator",
                    where="wrong_habits",
                    fix=did_you_mean(name, OPERATORS),
                )

    def script(self, drill: Drill, request: GenerateRequest) -> list[ParsedTurn]:
        key = key_of("demonstrator", request.noise, drill.id)
        named = names_file(drill, self.drills.config.vague_share)
        looks = [] if named and uniform(key, 0) >= self.config.check_first_share else [check()]
        repair = drill.wrong if uniform(key, 1) < self.error_share(drill) else drill.before
        return [*looks, read(drill.path), edit(drill.path, drill.buggy, drill.line, repair), check(), finish()]

    def error_share(self, drill: Drill) -> float:
        """How often this drill is repaired wrongly."""
        habit = drill.operator in self.config.wrong_habits
        return self.config.wrong_share if habit else self.config.slip_share


def build(config: DemonstratorConfig, build: BuildContext) -> Demonstrator:
    """Factory of the record."""
    return Demonstrator(config, build)
