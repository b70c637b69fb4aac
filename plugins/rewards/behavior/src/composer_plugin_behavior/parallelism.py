"""`parallelism`: reads that do not wait for each other stand in one turn."""

from __future__ import annotations

import json
from collections.abc import Sequence

from composer_core import Trace
from composer_core.types import Call, Score, ToolResult
from composer_plugin_behavior.config import ParallelismConfig
from composer_plugin_behavior.gate import gated, score
from composer_plugin_behavior.reading import changed, executed, normal

PLACES = ("read", "listed", "searched", "linted")
"""What a tool says it has looked at, wherever the call's arguments led it."""
SAME = ("limit", "around")
"""Arguments that show more or less of the same answer."""
WHERE = ("path", "paths")


def parallelism(group: Sequence[Trace], config: ParallelismConfig) -> list[Score]:
    """Mean over the turns that read of clip((min(n - r, cap) - 1) / (cap - 1), 0, 1); 0 where nothing was read.

    n counts a turn's independent reads: successful calls of tools that read, each asking what has not been asked since
    a file was last changed. Calls of one turn cannot depend on each other, since none has seen another's result. r
    counts its redundant ones, which ask again: reads that fill a turn up cost what they would have gained. A question
    is the tool, what the tool says it looked at, and the arguments beside path and limits. Parts of one file are one
    question in a turn, an answer that the turn holds already is nothing new, and what a command may have changed is not
    known, so it renews no question.

    Source: the behavior is the Composer 2 report's (arXiv 2603.24477), where it follows from what turns cost; the bonus
    is in the manner of the parallel-agent reward of the Kimi K2.5 report (Moonshot AI, 2026), without its annealing.
    """
    return [gated(trace, _of(trace, config), low=0.0) for trace in group]


def _of(trace: Trace, config: ParallelismConfig) -> Score:
    turns = widths(trace, config.reads)
    values = [min(max(min(n - r, config.cap) - 1, 0) / (config.cap - 1), 1.0) for n, r in turns]
    parts = {
        "reading_turns": float(len(turns)),
        "reads": float(sum(n for n, _ in turns)),
        "redundant": float(sum(r for _, r in turns)),
    }
    return score(sum(values) / max(1, len(values)), parts)


def widths(trace: Trace, reads: Sequence[str]) -> list[tuple[int, int]]:
    """(independent, redundant) reads of each turn that reads."""
    asked: set[str] = set()
    found = []
    for turn in trace.turns:
        files: set[object] = set()
        answers: set[str] = set()
        new = again = 0
        for call, result in executed(turn):
            question = _question(call, result)
            if changed(result):
                asked.clear()
            elif call.name not in reads:
                continue
            elif question in asked or result.data.get("read") in files:
                again += 1
            elif result.ok:
                asked.add(question)
                files |= {result.data["read"]} if "read" in result.data else set()
                new += result.text not in answers
                answers.add(result.text)
        if new or again:
            found.append((new, again))
    return found


def _question(call: Call, result: ToolResult) -> str:
    """What a call asked, in one spelling: a path as the tool has read it, and how much of the answer is left out."""
    found = [result.data[key] for key in PLACES if key in result.data]
    places = [normal(path) for paths in found for path in ([paths] if isinstance(paths, str) else paths)]
    apart = (*SAME, *WHERE) if found else SAME
    given = {name: value for name, value in call.arguments.items() if name not in apart}
    return json.dumps([call.name, sorted(places), given], sort_keys=True, default=str)
