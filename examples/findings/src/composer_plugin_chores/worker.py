"""The sampler `chores/worker`: repairs chores by script, with habits in shares that the run file chooses.

Done as it should be, each file is read, its body quoted and rewritten, and the end told. The habits are what the
findings ask about: a stub for a repair, calls that nobody needs, several calls in one turn, files that are written
whole without a look. Every habit is drawn by itself from the attempt's noise, so demonstrations hold all mixtures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from composer_core import BuildContext
from composer_core.errors import ConfigError
from composer_core.noise import key_of, uniform
from composer_core.types import Call, GenerateRequest, ParsedTurn
from composer_plugin_chores.chores import Chore, known
from composer_plugin_chores.config import WorkerConfig
from composer_plugin_chores.tasks import ChoreSet
from composer_plugin_drills.catalog import Function, body
from composer_plugin_drills.config import DemonstratorConfig
from composer_plugin_drills.demonstrator import STUB
from composer_plugin_drills.drills import Drill
from composer_plugin_drills.script import ScriptedSampler
from composer_plugin_drills.workspace import COMMAND

Step = tuple[str, Mapping[str, Any]]
"""A call to be: the tool's name, and its arguments."""
WRONG = DemonstratorConfig().wrong_habits
"""Operators whose repair may be a stub."""
WASTE = ("check first", "package", "again", "check")
"""Superfluous calls: the tests run before anything is looked at, the package's empty `__init__.py` read, a file read
again once it is edited, the tests run at the end."""
CHECK: Step = ("run_terminal", {"command": COMMAND})
FINISH: Step = ("finish", {})


class Worker(ScriptedSampler):
    """Plays one attempt; see the module docstring."""

    def __init__(self, config: WorkerConfig, build: BuildContext) -> None:
        super().__init__(build)
        self.config = config

    def script(self, request: GenerateRequest) -> list[ParsedTurn]:
        tasks = self._build.get("tasks")
        if not isinstance(tasks, ChoreSet):
            raise ConfigError("it knows chores only", who="chores/worker", where="tasks.use", fix="chores/chores")
        chore = tasks.chore(request.task_id)
        key = key_of("worker", request.noise, chore.id)
        by_heart = known(tasks.config.body_chars)
        turns = [*_blindly(chore, self.config, by_heart, key)] or [*_properly(chore, self.config, key)]
        return [turn_of(steps) for steps in [*turns, [FINISH]]]


def _properly(chore: Chore, config: WorkerConfig, key: int) -> Iterator[list[Step]]:
    """Read and edit, file by file or all at once, with superfluous calls in between; a turn's steps at a time."""
    waste = {name for at, name in enumerate(WASTE) if uniform(key_of(key, "waste"), at) < config.waste_share}
    reads = [_read(drill.path) for drill in chore.drills]
    edits = [_edit(drill, config, key) for drill in chore.drills]
    yield from [[CHECK]] if "check first" in waste else []
    yield from [[_grep(drill)] for drill in chore.drills] if chore.named == "function" else []
    yield from [[_read(f"{chore.drills[0].function.module}/__init__.py")]] if "package" in waste else []
    if len(chore.drills) > 1 and uniform(key, 0) < config.parallel_share:
        yield from (reads, edits)
    else:
        yield from ([step] for step in chain.from_iterable(zip(reads, edits, strict=True)))
    yield from [[reads[0]]] if "again" in waste else []
    yield from [[CHECK]] if "check" in waste else []


def _blindly(chore: Chore, config: WorkerConfig, by_heart: Sequence[Function], key: int) -> Iterator[list[Step]]:
    """Files written from memory; nothing where the request says which files they are, or the draw is against it.

    A spare one is the next of the functions that pre-training teaches: a policy cannot imitate what it never read.
    """
    if chore.named == "path" or uniform(key, 1) >= config.blind_share:
        return
    asked = [drill.function for drill in chore.drills]
    order = [*by_heart[by_heart.index(asked[0]) :], *by_heart]
    spare = next(one for one in order if one not in asked)
    yield from ([_write(function)] for function in [*asked, *([spare] if uniform(key, 2) < config.spare_share else [])])


def _edit(drill: Drill, config: WorkerConfig, key: int) -> Step:
    wrong = drill.operator in WRONG and uniform(key_of(key, drill.id), 0) < config.wrong_share
    new = STUB if wrong else body(drill.function.text)
    return "edit_file", {"path": drill.path, "old": body(drill.buggy), "new": new}


def _read(path: str) -> Step:
    return "read_file", {"path": path}


def _grep(drill: Drill) -> Step:
    return "grep", {"pattern": f"def {drill.function.name}"}


def _write(function: Function) -> Step:
    return "write_file", {"path": function.path, "content": function.text}


def turn_of(steps: list[Step]) -> ParsedTurn:
    """A turn of calls and no words."""
    return ParsedTurn(text="", calls=tuple(Call(str(at), name, given) for at, (name, given) in enumerate(steps)))


def build(config: WorkerConfig, build: BuildContext) -> Worker:
    """Factory of the record."""
    return Worker(config, build)
