"""`todos`: what an agent has said it will do and then left open."""

from __future__ import annotations

from collections.abc import Sequence

from composer_core import Trace
from composer_core.types import Score
from composer_plugin_behavior.gate import gated, score
from composer_plugin_behavior.reading import executed

OPEN = ("pending", "in_progress")


def todos(group: Sequence[Trace]) -> list[Score]:
    """-(open + dropped) / opened; 0 where no to-do was opened.

    What counts is the list as the tool had it after each call. Opened are all to-dos that were ever open (pending or in
    progress): those that are written down as done already would only thin out the others. Open are those that are so at
    the end, dropped those that were taken off the list while they were: a list that is emptied in the last turn is no
    list that was worked off. A to-do that is cancelled has been decided on and is not open.

    Source: to-do items that are opened and left unfinished are the Composer 2 report's example of a product penalty
    (arXiv 2603.24477, section 4.2).
    """
    return [gated(trace, _of(trace)) for trace in group]


def _of(trace: Trace) -> Score:
    opened, left, dropped = followed(trace)
    parts = {"opened": float(len(opened)), "open": float(len(left)), "dropped": float(len(dropped))}
    return score(-len(left | dropped) / max(1, len(opened)), parts)


def followed(trace: Trace) -> tuple[set[str], set[str], set[str]]:
    """Ids of to-dos that were ever open, that are at the end, and that were dropped while they were."""
    opened: set[str] = set()
    left: set[str] = set()
    dropped: set[str] = set()
    for turn in trace.turns:
        for _, result in executed(turn):
            if not result.ok or "statuses" not in result.data:
                continue
            statuses = result.data["statuses"]
            dropped = (dropped | left) - set(statuses)
            left = {id for id, status in statuses.items() if status in OPEN}
            opened |= left
    return opened, left, dropped
