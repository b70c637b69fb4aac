"""The probe `chores/measures`: what an episode did, as a reward that weighs nothing.

A reward because that is what sees a whole trace on the trusted side, in evaluations too, with the task's labels beside
it. Its parts stand in every episode's result, so nobody has to open traces. Only what the policy was shown before a
turn counts as seen in it: calls of one turn were all written before any of their results.
"""

from __future__ import annotations

from collections.abc import Iterator

from composer_core import Score, TaskView, Trace
from composer_core.types import Call, ToolResult, Turn

SEARCHES = ("grep", "glob", "list_dir")


def measures(trace: Trace, task: TaskView) -> Score:
    """Counts, all of whole episodes.

    excess: calls beyond those of whoever wastes none (a read and an edit for each broken file, and the end).
    looks: files read and patterns searched for before the first turn that writes, each once; reads: again ones too.
    reading_turns, writing_turns: turns with a successful read, or write; with reads and writes their widths.
    writes: successful ones; needless: those beyond the first of each broken file.
    blind: first writes of files that were not read, and did not stand in a result or a call, in a turn before.
    """
    broken = set(task.labels["files"].split("\n"))
    parts = dict.fromkeys(("looks", "reads", "reading_turns", "writes", "writing_turns", "needless", "blind"), 0.0)
    seen, written, looked = "", set[str](), set[str]()
    for turn in trace.turns:
        done = [*_executed(turn)]
        reads = [result for _, result in done if "read" in result.data]
        paths = [str(result.data["written"]) for _, result in done if "written" in result.data]
        parts["reads"] += len(reads)
        parts["reading_turns"] += bool(reads)
        parts["writes"] += len(paths)
        parts["writing_turns"] += bool(paths)
        if not written and not paths:
            looked |= {str(result.data["read"]) for result in reads}
            looked |= {f"{call.name} {call.arguments}" for call, _ in done if call.name in SEARCHES}
        for path in paths:
            parts["blind"] += path not in written and path not in seen
            parts["needless"] += path in written or path not in broken
            written.add(path)
        seen += "".join(f"{call.arguments}\n{result.text}\n" for call, result in done if "written" not in result.data)
    parts["looks"] = float(len(looked))
    parts["bugs"] = float(len(broken))
    parts["excess"] = len(trace.calls()) - float(task.labels["least_calls"])
    return Score("chores/measures", "", 0.0, parts)


def _executed(turn: Turn) -> Iterator[tuple[Call, ToolResult]]:
    """The turn's calls that succeeded, each with its result."""
    results = {result.call_id: result for result in turn.results if result.ok}
    return ((call, results[call.id]) for call in turn.calls if call.problem is None and call.id in results)
