"""Settings of the task set and of its worker. Thin."""

from __future__ import annotations

from attrs import Attribute, field, frozen
from attrs.validators import and_, ge, gt, le

NAMED = ("path", "function")
"""How a request says where the work is: by the file's path, or by the function's name alone."""
MOST_BUGS = 4


def _kinds(config: ChoresConfig, attribute: Attribute[tuple[str, ...]], kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        named, _, bugs = kind.partition("-")
        if named not in NAMED or bugs not in map(str, range(1, MOST_BUGS + 1)):
            known = f"{' or '.join(NAMED)}, a dash, and 1 to {MOST_BUGS}"
            raise ValueError(f"{attribute.name} holds {kind!r}; each is {known}, such as path-2")
    if len({*kinds}) < len(kinds):
        raise ValueError(f"{attribute.name} holds {', '.join(kinds)}; each once, or tasks would share their ids")
    if not kinds:
        raise ValueError(f"{attribute.name} is empty, so there would be no task")


def _share(default: float) -> float:
    return field(default=default, validator=and_(ge(0.0), le(1.0)))


@frozen
class ChoresConfig:
    """Settings of the task set `chores/chores`."""

    kinds: tuple[str, ...] = field(default=("path-1", "path-2"), validator=_kinds)
    """Kinds of tasks, in turns: how the request names the work, and how many files are broken, such as "path-2"."""
    body_chars: int = field(default=104, validator=gt(0))
    """Functions whose bodies have more characters are left out: 39 are left of the library at 104."""
    train: int = field(default=2048, validator=gt(0))
    """Tasks to learn from."""
    restoring_variants: int = field(default=200, validator=gt(0))
    """Noisy documents of each function in the texts `restoring`."""


@frozen
class WorkerConfig:
    """Settings of the sampler `chores/worker`: its habits, each drawn by itself. All are shares in [0, 1]."""

    wrong_share: float = _share(0.0)
    """Of repairs of the commonest kinds of bugs that are a stub, as of `drills/demonstrator`."""
    waste_share: float = _share(0.0)
    """Of attempts that make one of four superfluous calls, each drawn by itself; as many in long tasks as in short."""
    parallel_share: float = _share(0.0)
    """Of attempts that read all files in one turn, and edit all in one."""
    blind_share: float = _share(0.0)
    """Of requests that name functions and no files: attempts that write the files whole, without looking."""
    spare_share: float = _share(0.0)
    """Of blind attempts that write a file too that is not broken, for good measure."""
