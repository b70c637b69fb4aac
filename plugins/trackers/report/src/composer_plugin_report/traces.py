"""One trace as the page shows it: why it ended so, the conversation with calls and results, scores, the patch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from composer_core.diffs import FileDiff, compare
from composer_core.history import EpisodeRow
from composer_core.trees import File, Patch
from composer_core.types import Call, Outcome, Stop, ToolResult, Trace, Turn

PAIRS = (("old", "new"), ("old_text", "new_text"), ("old_string", "new_string"), ("before", "after"))


def trace_model(trace: Trace, row: EpisodeRow, most_chars: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "task": trace.key.task_id,
        "purpose": row.purpose,
        "outcome": row.outcome,
        "cause": row.cause,
        "stop": str(trace.stop),
        "why": why(trace),
        "reward": row.reward,
        "tokens": trace.sampled_tokens(),
        "labels": dict(trace.labels),
        "stats": dict(trace.stats),
        "opening": [{"role": message.role, "text": cut(message.text, most_chars)} for message in trace.opening],
        "turns": [_turn(turn, most_chars) for turn in trace.turns],
        "scores": [
            {
                "reward": score.reward,
                "value": score.value,
                "weight": score.weight,
                "parts": dict(score.parts),
                "note": score.note,
            }
            for score in trace.scores
        ],
        "faults": [f"{fault.where} ({fault.plugin}): {fault.error}" for fault in trace.faults],
        "patch": patch_model(trace, most_chars),
    }


def _turn(turn: Turn, most_chars: int) -> dict[str, Any]:
    results = {result.call_id: result for result in turn.results}
    calls = [_call(call, results.pop(call.id, None), most_chars) for call in turn.calls]
    return {
        "index": turn.index,
        "purpose": turn.purpose,
        "branch": turn.branch,
        "tokens": turn.stop - turn.start,
        "generate_s": turn.generate_s,
        "tools_s": turn.tools_s,
        "text": cut(turn.text.strip(), most_chars),
        "calls": calls + [_call(Call(id, result.tool, {}), result, most_chars) for id, result in results.items()],
    }


def _call(call: Call, result: ToolResult | None, most_chars: int) -> dict[str, Any]:
    pair = edit_of(call)
    hidden = set(pair[0]) if pair else set()
    arguments = [
        [name, cut(value if isinstance(value, str) else json.dumps(value, default=str), most_chars)]
        for name, value in call.arguments.items()
        if name not in hidden
    ]
    shown = None if result is None else {
        "text": cut(result.text, most_chars),
        "ok": result.ok,
        "problem": result.problem,
        "exit_code": result.exit_code,
        "wall_s": result.wall_s,
    }  # fmt: skip
    edit = _edit(pair[1], pair[2], most_chars) if pair else []
    problem = " ".join(part for part in (call.problem, call.detail) if part)
    return {"name": call.name, "arguments": arguments, "edit": edit, "problem": problem, "result": shown}


def _edit(old: str, new: str, most_chars: int) -> list[list[str]]:
    """What a call replaces, as rows without hunk heads and remarks."""
    files = (File("edit", old.encode("utf-8", "replace")), File("edit", new.encode("utf-8", "replace")))
    (diff,) = compare(files[:1], Patch(files[1:]))
    return _bounded([row for row in diff.rows if row[0] in "+- "], most_chars)


def edit_of(call: Call) -> tuple[tuple[str, str], str, str] | None:
    """The (names, old text, new text) of a call that replaces text, whatever its tool is called."""
    for old, new in PAIRS:
        if isinstance(call.arguments.get(old), str) and isinstance(call.arguments.get(new), str):
            return (old, new), call.arguments[old], call.arguments[new]
    return None


def patch_model(trace: Trace, most_chars: int) -> list[dict[str, Any]]:
    """Per path: what happened to it, and its lines as [mark, text]."""
    shown: list[dict[str, Any]] = [
        {"path": diff.path, "how": _how(diff), "lines": _bounded(diff.rows, most_chars)}
        for diff in compare(trace.originals, trace.patch, trace.originals_whole)
    ]
    return shown + [{"path": path, "how": "skipped", "lines": []} for path in trace.patch.skipped]


def _how(diff: FileDiff) -> str:
    facts = [diff.how, "binary" if diff.binary else "", "executable" if diff.modes[1].endswith("755") else ""]
    return ", ".join(filter(None, facts))


LIMITS = {
    Stop.TURNS: "ran out of turns",
    Stop.TOKENS: "ran out of tokens",
    Stop.TIME: "ran out of time",
    Stop.CONTEXT: "filled its context",
    Stop.NO_CALL: "ended with a turn that calls no tool",
    Stop.CANCELLED: "was cancelled",
}


def why(trace: Trace) -> str:
    """What a person looks for first in an episode that was not solved; empty for one that was."""
    if trace.verdict.outcome is Outcome.VOID:
        return "; ".join(fault.error.partition("\n")[0] for fault in trace.faults) or "void"
    if trace.verdict.outcome is not Outcome.FAILED:
        return ""
    problems = Counter(call.problem for call in trace.calls() if call.problem)
    codes = [result.exit_code for result in trace.results() if result.exit_code is not None]
    found = [
        LIMITS.get(trace.stop, ""),
        "" if trace.patch else "changed nothing",
        f"its last command exited with {codes[-1]}" if codes and codes[-1] else "",
        "ran no command" if not codes else "",
        *(f"{times} {problem} call{'s' if times > 1 else ''}" for problem, times in problems.items()),
        *(score.note or f"{score.reward} gave {score.value:g}" for score in trace.scores if score.value < 1),
    ]
    return "; ".join(filter(None, found))


def _bounded(rows: Sequence[tuple[str, str]], most_chars: int) -> list[list[str]]:
    used = 0
    lines = [[mark, text] for mark, text in rows]
    for index, (_, text) in enumerate(rows):
        used += len(text) + 1
        if used > most_chars:
            return [*lines[:index], ["@", f"({len(rows) - index} more lines)"]]
    return lines


def cut(text: str, most_chars: int) -> str:
    """Head and tail of a long text, saying how much is left out."""
    if len(text) <= most_chars:
        return text
    head, tail = most_chars * 2 // 3, most_chars // 3
    return f"{text[:head]}\n[{len(text) - head - tail:,} characters left out]\n{text[-tail:]}"
