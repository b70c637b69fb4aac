"""A chore: one to four drills as one task, and how the request names them.

Everything follows from the id, `SPLIT-NAMED-BUGS-NUMBER`, such as "train-path-2-0007". Drills of a chore are of
different functions, and of the split that the chore is of, so what is held out of drills is held out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from attrs import frozen

from composer_core.errors import ConfigError
from composer_core.noise import bits, key_of, shuffled
from composer_plugin_drills.catalog import Function, body, functions
from composer_plugin_drills.drills import Drill, drills

SPLITS: Mapping[str, str] = {
    "train": "chores to learn from",
    "dev": "edit sites of no other split, to look at while something is tried out",
    "held_out": "edit sites of no other split, for what is reported",
}
OF_DRILLS = {"train": "train", "dev": "new_bug_dev", "held_out": "new_bug"}
"""Split of chores -> split of drills that it is made of."""
TEMPLATES = ("fix {all}", "{all} wrong, pls fix", "bugs: {all}", "{all} broken", "pls repair {all}")


@frozen
class Chore:
    """What a task is made from."""

    id: str
    split: str
    named: str
    """path or function: how the request says where the work is."""
    drills: tuple[Drill, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(drill.path for drill in self.drills)

    @property
    def least_calls(self) -> int:
        """Calls of whoever wastes none: each file is read and edited, and the end is told."""
        return 2 * len(self.drills) + 1

    @property
    def prompt(self) -> str:
        """The request."""
        names = self.paths if self.named == "path" else [drill.function.name for drill in self.drills]
        return TEMPLATES[bits(key_of("request", self.id), 0) % len(TEMPLATES)].format(all=", ".join(names))


@cache
def make(split: str, kind: str, number: int, body_chars: int) -> Chore:
    """The chore of a kind ("path-2") and number. Single ones go through the drills in order, and again if they end.

    Raises:
        ConfigError: there are not as many functions with so short a body.
    """
    id = f"{split}-{kind}-{number:04d}"
    named, _, bugs = kind.partition("-")
    pool = _pool(OF_DRILLS[split], body_chars)
    paths = {drill.path for drill in pool}
    if len(paths) < int(bugs):
        raise ConfigError(
            f"a chore of {kind!r} needs {bugs} short functions",
            who="chores/chores",
            where="tasks.body_chars",
            found=f"{len(paths)} with a body of at most {body_chars} characters",
            fix="allow longer ones",
        )
    if bugs == "1":
        return Chore(id, split, named, (pool[number % len(pool)],))
    chosen: dict[str, Drill] = {}
    for place in shuffled(list(range(len(pool))), key_of("chore", id)):
        chosen.setdefault(pool[place].path, pool[place])
        if len(chosen) == int(bugs):
            break
    return Chore(id, split, named, tuple(chosen.values()))


@cache
def known(body_chars: int) -> Sequence[Function]:
    """The functions that chores are about: short ones, of modules that drills do not hold out."""
    return [one for one in functions().values() if not one.held_out and len(body(one.text)) <= body_chars]


@cache
def _pool(split: str, body_chars: int) -> Sequence[Drill]:
    paths = {function.path for function in known(body_chars)}
    return [drill for drill in drills().values() if drill.split == split and drill.path in paths]
