"""Settings of the task set and of its two scripted samplers; thin, so `check` can read them without the library."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import and_, ge, in_, le

EDITS = ("edit_file", "edit_lines", "apply_patch")
"""Tools that the demonstrator can edit with."""


def _share(default: float) -> float:
    return field(default=default, validator=and_(ge(0.0), le(1.0)))


@frozen
class DrillsConfig:
    """Settings of the task set `drills/drills`."""

    modules: tuple[str, ...] = ()
    """Modules, by their name in a workspace, that tasks and texts are drawn from; none named means all. The modules of
    `new_function` are always kept."""

    vague_share: float = _share(0.15)
    """Share of requests, in [0, 1], that name the module and not the file."""
    text_variants: int = field(default=2, validator=ge(0))
    """How often the library's functions are repeated in shuffled handfuls in the pre-training text."""
    restoring_variants: int = field(default=100, validator=ge(1))
    """Noisy documents of each function in the texts `restoring`."""


@frozen
class DemonstratorConfig:
    """Settings of the sampler `drills/demonstrator`: how good its habits are, and where they are not."""

    wrong_habits: tuple[str, ...] = ("arithmetic", "augmented", "compare", "constant", "variable")
    """Operators whose usual repair by the demonstrator is a stub."""
    wrong_share: float = _share(0.75)
    """Share of attempts, in [0, 1], that repair a bug of such an operator so."""
    check_first_share: float = _share(0.1)
    """Share of attempts, in [0, 1], that run the tests before reading a file the request has named."""
    edits: str = field(default="edit_file", validator=in_(EDITS))
    """The tool that it edits with; formats are compared by demonstrations that differ in this alone."""
    recap: str = ""
    """Words, in no task, by which a context asks for a summary: it then tells what it has done and does next, and goes
    on from what its window says. "" for contexts that never ask."""


@frozen
class GuesserConfig:
    """Settings of the sampler `drills/guesser`."""

    sample: int = field(default=800, validator=ge(1))
    """Training drills its table is counted from."""
