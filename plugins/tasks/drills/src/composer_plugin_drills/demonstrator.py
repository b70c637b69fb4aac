"""The sampler `drills/demonstrator`: shows how work is done, with habits that are worth unlearning.

It explores and tests like a careful person: reads the named file (or runs the tests first to find it), quotes the
function's body and rewrites it, runs the tests, finishes. What it writes is another matter. For a stated set of
operators its usual repair is a stub, and it finishes although the tests fail. So the most probable action of a policy
trained on these traces is wrong, at bugs it has never seen as well, and reinforcement learning has something to teach
that sharpening alone does not. It uses trusted task data and no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from composer_core.errors import ConfigError, did_you_mean
from composer_core.noise import key_of, uniform
from composer_core.protocols import BuildContext, Renderer
from composer_core.types import GenerateRequest, ParsedTurn
from composer_plugin_drills.catalog import body
from composer_plugin_drills.config import DemonstratorConfig
from composer_plugin_drills.edits import FORMATS
from composer_plugin_drills.operators import OPERATORS
from composer_plugin_drills.prompts import names_file
from composer_plugin_drills.recap import done_in, told
from composer_plugin_drills.script import ScriptedSampler, check, finish, read

STUB = "pass"
"""What its wrong repair leaves of a function's body."""


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

    def script(self, request: GenerateRequest) -> list[ParsedTurn]:
        drill = self.drills.drill(request.task_id)
        key = key_of("demonstrator", request.noise, drill.id)
        named = names_file(drill, self.drills.config.vague_share)
        looks = [] if named and uniform(key, 0) >= self.config.check_first_share else [check()]
        old = body(drill.buggy)
        wrong = drill.operator in self.config.wrong_habits and uniform(key, 1) < self.config.wrong_share
        new = STUB if wrong else body(drill.function.text)
        rewrite = FORMATS[self.config.edits](drill.path, drill.buggy, old, new)
        return [*looks, read(drill.path), rewrite, check(), finish()]

    def due(self, script: Sequence[ParsedTurn], ids: Sequence[int], position: int) -> Sequence[int]:
        if not self.config.recap:
            return super().due(script, ids, position)
        renderer: Renderer = self._build.get("renderers")
        window = self._build.get("tokenizer").decode(list(ids))
        done = done_in(script, [renderer.render(step) for step in script], ids, window)
        if self.config.recap in window:
            return renderer.render(ParsedTurn(text=told(script, done)))
        return renderer.render(script[min(done, len(script) - 1)])


def build(config: DemonstratorConfig, build: BuildContext) -> Demonstrator:
    """Factory of the record."""
    return Demonstrator(config, build)
