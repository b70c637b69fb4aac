"""`evidence`: no file is changed blindly."""

from __future__ import annotations

from collections.abc import Sequence

from composer_core import Trace
from composer_core.types import Score
from composer_plugin_behavior.gate import gated, score
from composer_plugin_behavior.reading import Seen, changed, executed


def evidence(group: Sequence[Trace]) -> list[Score]:
    """-(files changed without evidence) / (files changed); 0 where none was changed.

    A file has evidence if, before the turn that first writes it, it was read, or its path stood in the task's prompt
    or in the result or the arguments of a call that changed nothing (a search, a listing, a command). Files that the
    episode creates need none. Results of the same turn come too late: the call was written before they were there. A
    file of the patch that no tool wrote was changed by a command, nobody knows which, and has evidence if it was met at
    all.

    Source: ours. That Composer came to read more and to edit less without grounds by itself was told at Ray Summit 2025
    (Sasha Rush).
    """
    return [gated(trace, _of(trace)) for trace in group]


def _of(trace: Trace) -> Score:
    existed = {file.path for file in trace.originals}
    seen = Seen(texts=[message.text for message in trace.opening])
    touched: dict[str, bool] = {}
    for turn in trace.turns:
        for path in [path for _, result in executed(turn) for path in changed(result) if path in existed]:
            touched.setdefault(path, seen.knows(path))
        seen.add(turn)
    touched = {path: seen.knows(path) for path in sorted(existed)} | touched
    blind = sorted(path for path, known in touched.items() if not known)
    parts = {"changed": float(len(touched)), "blind": float(len(blind))}
    return score(-len(blind) / max(1, len(touched)), parts, ", ".join(blind))
