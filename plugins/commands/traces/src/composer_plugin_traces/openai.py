"""OpenAI messages with tools: what fine-tuning stacks and data sets of agent runs hold, one episode a line.

Beside `messages` and `tools` stand the columns that such sets have: trajectory_id, instance_id, model_patch,
exit_status, resolved. Arguments of calls are JSON text, as the API has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_plugin_traces.episodes import (
    NAMED,
    Act,
    Checked,
    Episode,
    Found,
    Said,
    Shape,
    as_number,
    as_text,
    read_call,
)

ROW = Shape({"messages": list}, {"tools": list, "trajectory_id": str, "instance_id": str}, others=True)
CALL = Shape({"id": str, "type": str, "function": dict})
FUNCTION = Shape({"name": str, "arguments": str})
TOOL = Shape({"type": str, "function": dict})
MESSAGES = {
    "system": Shape({"role": str, "content": str}, {"name": str}),
    "developer": Shape({"role": str, "content": str}, {"name": str}),
    "user": Shape({"role": str, "content": str}, {"name": str}),
    "assistant": Shape({"role": str}, {"content": str, "tool_calls": list, "name": str, "reasoning_content": str}),
    "tool": Shape({"role": str, "content": str, "tool_call_id": str}, {"name": str}),
}


def to_openai(episode: Episode) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": said.role, "content": said.text} for said in episode.opening]
    for act in episode.acts:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call.arguments)}}
            for call in act.calls
        ]
        messages.append({"role": "assistant", "content": act.text, **({"tool_calls": calls} if calls else {})})
        pairs = zip(act.calls, act.results, strict=False)
        for call, text in pairs:
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
    resolved = {"resolved": episode.outcome == "solved"} if episode.outcome in ("solved", "failed") else {}
    reward = {} if episode.reward is None else {"reward": episode.reward}
    return {
        "trajectory_id": episode.id,
        "instance_id": episode.task,
        "messages": messages,
        "tools": [{"type": "function", "function": dict(tool)} for tool in episode.tools],
        "model_patch": episode.patch,
        "exit_status": episode.stop,
        **resolved,
        **reward,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def from_openai(row: Mapping[str, Any]) -> Episode:
    """The episode of a row that `check_openai` found nothing wrong with."""
    opening: list[Said] = []
    acts: list[Act] = []
    for message in row["messages"]:
        role, text = message["role"], message.get("content") or ""
        if role == "assistant":
            thought = message.get("reasoning_content")
            calls = tuple(_call(call) for call in message.get("tool_calls") or ())
            acts.append(Act(f"<think>{thought}</think>{text}" if thought else text, calls))
        elif role == "tool":
            acts[-1] = Act(acts[-1].text, acts[-1].calls, (*acts[-1].results, text))
        else:
            opening.append(Said("user" if role == "user" else "system", text))
    resolved = row.get("resolved")
    return Episode(
        id=as_text(row.get("trajectory_id")),
        task=as_text(row.get("instance_id")),
        opening=tuple(opening),
        acts=tuple(acts),
        tools=tuple(tool["function"] for tool in row.get("tools") or ()),
        outcome="" if resolved is None else "solved" if resolved else "failed",
        stop=as_text(row.get("exit_status")),
        reward=as_number(row.get("reward")),
        patch=as_text(row.get("model_patch")),
    )


def _call(call: Mapping[str, Any]) -> Any:
    return read_call(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))


def check_openai(row: Any) -> Checked:
    """Everything wrong with a row; nothing, and `from_openai` reads it."""
    found = ROW.check(row, "row")
    if found:
        return found
    for index, tool in enumerate(row.get("tools") or ()):
        at = f"tools[{index}]"
        found += TOOL.check(tool, at) or NAMED.check(tool["function"], f"{at}.function")
    if row.get("resolved") not in (None, True, False):
        found.append(Found("row.resolved", f"must be true or false, found {row['resolved']!r}"))
    return [*found, *_messages(row["messages"])]


def _messages(messages: Sequence[Any]) -> Iterator[Found]:
    waiting: list[str] = []
    acted = False
    for index, message in enumerate(messages):
        at, role = f"messages[{index}]", message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in MESSAGES:
            yield Found(f"{at}.role", f"must be one of {', '.join(MESSAGES)}, found {role!r}")
            return
        wrong = MESSAGES[role].check(message, at)
        yield from wrong
        if wrong:
            return
        if role == "tool":
            if not waiting or message["tool_call_id"] != waiting.pop(0):
                yield Found(f"{at}.tool_call_id", "is not the next call of the turn; results stand in call order")
            continue
        if role == "assistant":
            calls = message.get("tool_calls") or []
            waiting = [str(call.get("id")) for call in calls if isinstance(call, dict)]
            for number, call in enumerate(calls):
                yield from _check_call(call, f"{at}.tool_calls[{number}]")
        elif acted:
            yield Found(at, f"a message of the {role} stands after the policy's first; only one task is imitated")
        acted = acted or role == "assistant"
    if not acted:
        yield Found("messages", "hold no turn of the assistant")


def _check_call(call: Any, at: str) -> Iterator[Found]:
    wrong = CALL.check(call, at) or FUNCTION.check(call["function"], f"{at}.function")
    yield from wrong
    if wrong:
        return
    try:
        arguments = json.loads(call["function"]["arguments"])
    except ValueError as error:
        yield Found(f"{at}.function.arguments", f"must be JSON text: {error}")
        return
    if not isinstance(arguments, dict):
        yield Found(f"{at}.function.arguments", "must be the JSON text of an object")
