"""Short, slightly careless requests, as people type them.

Most name the function and its file; a share names only the module, so the agent has to run the tests to find out
where. Which template a drill gets depends on its id alone.
"""

from __future__ import annotations

from composer_core.noise import key_of, uniform
from composer_plugin_drills.drills import Drill

NAMED = (
    "{function} in {path} is off",
    "{path}: {function} is wrong",
    "fix {function} in {path}",
    "{function} is broken, see {path}",
    "bug in {path}, pls fix",
    "{path} gives wrong results",
    "{function} ({path}) fails its tests",
)
VAGUE = (
    "something in {module} is broken",
    "{module} tests fail, fix it",
    "a bug in {module} somewhere",
    "{module} is off, pls check",
)


def names_file(drill: Drill, vague_share: float) -> bool:
    """Whether the request says which file it is about."""
    return uniform(key_of("prompt", drill.id), 0) >= vague_share


def prompt(drill: Drill, vague_share: float) -> str:
    """The request; at most eight words."""
    templates = NAMED if names_file(drill, vague_share) else VAGUE
    template = templates[int(uniform(key_of("prompt", drill.id), 1) * len(templates))]
    return template.format(function=drill.function.name, path=drill.path, module=drill.function.module)
