"""Who is paid for behavior: members that solved the task. All others get the low end of the range, alike.

A reward that looks at behavior alone pays for doing nothing, since an episode that gives up at once wastes nothing and
breaks nothing. With the gate an episode that failed is worth as little as the worst one that solved it, whatever it did
or left undone: a group in which all failed has no gradient, and giving up gains nothing.

`claims` alone has no gate: a lie costs most where the task failed, and whoever says nothing has not lied.
"""

from __future__ import annotations

from attrs import evolve

from composer_core import Trace
from composer_core.types import Score

NOT_SOLVED = "not solved"


def score(value: float, parts: dict[str, float], note: str = "") -> Score:
    """A score whose reward, version and weight the engine sets."""
    return Score("", "", value, parts, note)


def gated(trace: Trace, found: Score, low: float = -1.0) -> Score:
    """The score of a member that solved the task, else `low`; what was counted is told either way."""
    return found if trace.verdict.solved else evolve(found, value=low, note=NOT_SOLVED)
