"""One trace as the page shows it: a conversation with calls, results, verdict, scores, and the patch as a diff.

A trace holds patched files whole and no original. Where the agent's own edits (calls with a path, an old and a new
text) can be undone exactly, the original is rebuilt from them and a real diff is shown; otherwise the file as written.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

from composer_core.history import EpisodeRow
from composer_core.types import Call, ToolResult, Trace, Turn

PAIRS = (("old", "new"), ("old_text", "new_text"), ("old_string", "new_string"), ("before", "after"))


def trace_model(trace: Trace, row: EpisodeRow, most_chars: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "task": trace.key.task_id,
        "purpose": row.purpose,
        "outcome": row.outcome,
        "cause": row.cause,
        "stop": str(trace.stop),
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
    edit = [row for row in diff(pair[1], pair[2], most_chars) if row[0] != "@"] if pair else []
    problem = " ".join(part for part in (call.problem, call.detail) if part)
    return {"name": call.name, "arguments": arguments, "edit": edit, "problem": problem, "result": shown}


def edit_of(call: Call) -> tuple[tuple[str, str], str, str] | None:
    """The (names, old text, new text) of a call that replaces text, whatever its tool is called."""
    for old, new in PAIRS:
        if isinstance(call.arguments.get(old), str) and isinstance(call.arguments.get(new), str):
            return (old, new), call.arguments[old], call.arguments[new]
    return None


def patch_model(trace: Trace, most_chars: int) -> list[dict[str, Any]]:
    """Per path: whether it was written, deleted or skipped, and its lines as [mark, text]."""
    shown: list[dict[str, Any]] = []
    for file in trace.patch.writes:
        after = file.data.decode("utf-8", "replace")
        before = original(file.path, after, trace)
        lines = diff(before, after, most_chars) if before is not None else _whole(after, most_chars)
        shown.append({"path": file.path, "how": "changed" if before is not None else "written whole", "lines": lines})
    shown += [{"path": path, "how": "deleted", "lines": []} for path in trace.patch.deletes]
    return shown + [{"path": path, "how": "skipped", "lines": []} for path in trace.patch.skipped]


def original(path: str, after: str, trace: Trace) -> str | None:
    """The text before the agent's edits, by undoing them from the last; None where that is not exact."""
    done = [
        (edit[1], edit[2])
        for turn in trace.turns
        for call in turn.calls
        if call.arguments.get("path") == path and (edit := edit_of(call)) and _succeeded(call, turn.results)
    ]
    text = after
    for old, new in reversed(done):
        if not new or text.count(new) != 1:
            return None
        text = text.replace(new, old)
    return text if done else None


def _succeeded(call: Call, results: Iterable[ToolResult]) -> bool:
    return any(result.call_id == call.id and result.ok for result in results)


def diff(before: str, after: str, most_chars: int) -> list[list[str]]:
    """A unified diff as [mark, text], mark being one of @, +, - and blank."""
    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), n=3, lineterm="")
    lines = [["@", row] if row.startswith("@@") else [row[:1], row[1:]] for row in list(rows)[2:]]
    return _bounded(lines, most_chars)


def _whole(text: str, most_chars: int) -> list[list[str]]:
    return _bounded([["+", line] for line in text.splitlines()], most_chars)


def _bounded(lines: list[list[str]], most_chars: int) -> list[list[str]]:
    used = 0
    for index, (_, text) in enumerate(lines):
        used += len(text) + 1
        if used > most_chars:
            return [*lines[:index], ["@", f"({len(lines) - index} more lines)"]]
    return lines


def cut(text: str, most_chars: int) -> str:
    """Head and tail of a long text, saying how much is left out."""
    if len(text) <= most_chars:
        return text
    head, tail = most_chars * 2 // 3, most_chars // 3
    return f"{text[:head]}\n[{len(text) - head - tail:,} characters left out]\n{text[-tail:]}"
