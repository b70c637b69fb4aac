"""`evidence`: no file is changed blindly."""

from __future__ import annotations

from collections.abc import Sequence

from composer_core import Trace
from composer_core.types import Score, Turn
from composer_plugin_behavior.commands import changing
from composer_plugin_behavior.config import EvidenceConfig
from composer_plugin_behavior.gate import gated, score
from composer_plugin_behavior.reading import Seen, changed, executed, names


def evidence(group: Sequence[Trace], config: EvidenceConfig) -> list[Score]:
    """-(files changed without evidence) / (files changed); 0 where none was changed.

    A file has evidence if, before the turn that first writes it, it was read, or its path stood in the task's prompt
    or in the result or the arguments of a call that looked or ran a command. Files that the episode creates need none.
    Results of the same turn come too late: the call was written before they were there. A file of the patch that no
    tool wrote was changed by a command: by the first one that names it and does more than look, as far as its text
    tells, or by the last one that does more than look where none names it.

    Source: ours. That Composer came to read more and to edit less without grounds by itself was told at Ray Summit 2025
    (Sasha Rush).
    """
    return [gated(trace, _of(trace, config)) for trace in group]


def _of(trace: Trace, config: EvidenceConfig) -> Score:
    changes = _changes(trace, config)
    seen = Seen((*config.reads, *config.terminals), texts=[message.text for message in trace.opening])
    blind: list[str] = []
    for at in range(len(trace.turns) + 1):
        blind += [path for path, turn in changes.items() if turn == at and not seen.knows(path)]
        if at < len(trace.turns):
            seen.add(trace.turns[at])
    parts = {"changed": float(len(changes)), "blind": float(len(blind))}
    return score(-len(blind) / max(1, len(changes)), parts, ", ".join(sorted(blind)))


def _changes(trace: Trace, config: EvidenceConfig) -> dict[str, int]:
    """In which turn, counted from 0, each changed file that was there before was changed first."""
    existed = {file.path for file in trace.originals}
    written: dict[str, int] = {}
    named: dict[str, int] = {}
    last = len(trace.turns)  # no command changed anything: whatever did had seen all
    for at, turn in enumerate(trace.turns):
        for path in existed.intersection(path for _, result in executed(turn) for path in changed(result)):
            written.setdefault(path, at)
        if did := _did(turn, config):
            last = at
            for path in [path for path in existed if names(did, path)]:
                named.setdefault(path, at)
    return {path: written.get(path, named.get(path, last)) for path in existed}


def _did(turn: Turn, config: EvidenceConfig) -> str:
    """What the turn's commands did beyond looking."""
    commands = [str(call.arguments.get("command", "")) for call, _ in executed(turn) if call.name in config.terminals]
    return "\n".join(filter(None, map(changing, commands)))
