"""ATIF v1.7, the Agent Trajectory Interchange Format of Harbor, one trajectory a line, with token ids.

Source: RFC 0001 of Harbor. Each opening message is a step of the system or the user, each turn a step of the agent with
its calls, its results as the observation, and the ids it was sampled after and as. Token ids came with v1.3 and v1.4,
tool definitions with v1.5; all versions are read, v1.7 is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from composer_plugin_traces.episodes import (
    NAMED,
    Act,
    Checked,
    Episode,
    Found,
    Said,
    Shape,
    Tokens,
    as_number,
    as_text,
    read_call,
)

VERSION = "ATIF-v1.7"
VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(8))
NUMBER = (int, float)
ROOT = Shape(
    {"schema_version": str, "agent": dict, "steps": list},
    {
        "session_id": str,
        "trajectory_id": str,
        "notes": str,
        "final_metrics": dict,
        "continued_trajectory_ref": str,
        "subagent_trajectories": list,
        "extra": dict,
    },
)
AGENT = Shape({"name": str, "version": str}, {"model_name": str, "tool_definitions": list, "extra": dict})
STEP = Shape(
    {"step_id": int, "source": str, "message": (str, list)},
    {
        "timestamp": str,
        "model_name": str,
        "reasoning_effort": (str, int, float),
        "reasoning_content": str,
        "tool_calls": list,
        "observation": dict,
        "metrics": dict,
        "llm_call_count": int,
        "is_copied_context": bool,
        "extra": dict,
    },
)
AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
CALL = Shape({"tool_call_id": str, "function_name": str, "arguments": dict}, {"extra": dict})
OBSERVATION = Shape({"results": list})
RESULT = Shape({}, {"source_call_id": str, "content": (str, list), "subagent_trajectory_ref": list, "extra": dict})
METRICS = Shape(
    {},
    {
        "prompt_tokens": int,
        "completion_tokens": int,
        "cached_tokens": int,
        "cost_usd": NUMBER,
        "prompt_token_ids": list,
        "completion_token_ids": list,
        "logprobs": list,
        "extra": dict,
    },
)
DEFINITION = Shape({}, {"function": dict}, others=True)
PART = Shape({"type": str, "text": str}, others=True)
FINAL = Shape(
    {},
    {
        "total_prompt_tokens": int,
        "total_completion_tokens": int,
        "total_cached_tokens": int,
        "total_cost_usd": NUMBER,
        "total_steps": int,
        "extra": dict,
    },
)


def to_atif(episode: Episode) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"source": said.role, "message": said.text} for said in episode.opening]
    steps += [_step(act) for act in episode.acts]
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    tools = [{"type": "function", "function": dict(tool)} for tool in episode.tools]
    facts = {"outcome": episode.outcome, "stop": episode.stop, "patch": episode.patch, "reward": episode.reward}
    sampled = [act.tokens for act in episode.acts if act.tokens]
    return {
        "schema_version": VERSION,
        "session_id": episode.id,
        "trajectory_id": episode.id,
        "agent": {
            "name": "composer",
            "version": version("composer-core"),
            **({"tool_definitions": tools} if tools else {}),
        },
        "steps": numbered,
        "final_metrics": {
            "total_prompt_tokens": sum(len(tokens.prompt) for tokens in sampled),
            "total_completion_tokens": sum(len(tokens.completion) for tokens in sampled),
            "total_steps": len(steps),
        },
        "extra": {"task_id": episode.task, **{key: value for key, value in facts.items() if value not in ("", None)}},
    }


def _step(act: Act) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": act.text}
    if act.calls:
        step["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.name, "arguments": dict(call.arguments)}
            for call in act.calls
        ]
        pairs = zip(act.calls, act.results, strict=False)
        step["observation"] = {"results": [{"source_call_id": call.id, "content": text} for call, text in pairs]}
    if act.tokens:
        step["metrics"] = {
            "prompt_tokens": len(act.tokens.prompt),
            "completion_tokens": len(act.tokens.completion),
            "prompt_token_ids": list(act.tokens.prompt),
            "completion_token_ids": list(act.tokens.completion),
            "logprobs": list(act.tokens.logprobs),
        }
    return step


def from_atif(document: Mapping[str, Any]) -> Episode:
    """The episode of a document that `check_atif` found nothing wrong with."""
    steps, extra = document["steps"], document.get("extra") or {}
    opening = tuple(Said(step["source"], _text(step["message"])) for step in steps if step["source"] != "agent")
    return Episode(
        id=str(document.get("trajectory_id") or document.get("session_id") or ""),
        task=as_text(extra.get("task_id")),
        opening=opening,
        acts=tuple(_act(step) for step in steps if step["source"] == "agent"),
        tools=tuple(tool.get("function") or tool for tool in document["agent"].get("tool_definitions") or ()),
        outcome=as_text(extra.get("outcome")),
        stop=as_text(extra.get("stop")),
        reward=as_number(extra.get("reward")),
        patch=as_text(extra.get("patch")),
    )


def _act(step: Mapping[str, Any]) -> Act:
    calls = tuple(
        read_call(call["tool_call_id"], call["function_name"], call["arguments"])
        for call in step.get("tool_calls") or ()
    )
    results = (step.get("observation") or {}).get("results", ())
    places, _ = _paired([call.id for call in calls], results)
    told = tuple("" if place is None else _text(results[place].get("content") or "") for place in places)
    metrics, thought = step.get("metrics") or {}, step.get("reasoning_content")
    ids = metrics.get("completion_token_ids")
    tokens = None
    if ids is not None and metrics.get("prompt_token_ids") is not None:
        logprobs = metrics.get("logprobs") or [0.0] * len(ids)
        tokens = Tokens(tuple(metrics["prompt_token_ids"]), tuple(ids), tuple(logprobs))
    text = _text(step["message"])
    return Act(f"<think>{thought}</think>{text}" if thought else text, calls, told if results else (), tokens)


def _paired(ids: Sequence[str], results: Sequence[Mapping[str, Any]]) -> tuple[list[int | None], list[int]]:
    """For each call the place of its result, and the places of results that no call is left for.

    A result is that of the first call it names which has none; those that name no call have the calls that are left, in
    order.
    """
    places: list[int | None] = [None] * len(ids)
    lost = []
    for place in sorted(range(len(results)), key=lambda place: results[place].get("source_call_id") is None):
        named = results[place].get("source_call_id")
        free = [at for at, id in enumerate(ids) if places[at] is None and named in (None, id)]
        if free:
            places[free[0]] = place
        else:
            lost.append(place)
    return places, lost


def _text(message: Any) -> str:
    """The text of a message, which may be a list of parts."""
    return message if isinstance(message, str) else "".join(part.get("text", "") for part in message)


def check_atif(document: Any) -> Checked:
    """Everything wrong with a document; nothing, and `from_atif` reads it."""
    found = ROOT.check(document, "trajectory")
    if found:
        return found
    if document["schema_version"] not in VERSIONS:
        told = f"must be {VERSIONS[0]} to {VERSIONS[-1]}, found {document['schema_version']!r}"
        found.append(Found("trajectory.schema_version", told))
    found += AGENT.check(document["agent"], "agent") or _definitions(document["agent"].get("tool_definitions") or ())
    found += FINAL.check(document.get("final_metrics") or {}, "final_metrics")
    if not document["steps"]:
        found.append(Found("steps", "there is none"))
    for number, step in enumerate(document["steps"]):
        found += _check_step(step, f"steps[{number}]", number + 1)
    return found or [*_order([step["source"] for step in document["steps"]])]


def _definitions(tools: Sequence[Any]) -> Iterator[Found]:
    for index, tool in enumerate(tools):
        at = f"agent.tool_definitions[{index}]"
        wrong = DEFINITION.check(tool, at)
        yield from wrong
        if not wrong:
            function = tool.get("function")
            yield from NAMED.check(function, f"{at}.function") if function else NAMED.check(tool, at)


def _order(sources: list[str]) -> Iterator[Found]:
    first = sources.index("agent") if "agent" in sources else len(sources)
    if first == len(sources):
        yield Found("steps", "hold no turn of the agent")
    for number, source in enumerate(sources[first:], first):
        if source != "agent":
            yield Found(
                f"steps[{number}]", f"a step of the {source} stands after the agent's first; only one task is imitated"
            )


def _check_step(step: Any, at: str, number: int) -> Iterator[Found]:
    wrong = STEP.check(step, at)
    yield from wrong
    if wrong:
        return
    if step["step_id"] != number:
        yield Found(f"{at}.step_id", f"must be {number}, found {step['step_id']}")
    if step["source"] not in ("system", "user", "agent"):
        yield Found(f"{at}.source", f"must be system, user or agent, found {step['source']!r}")
    elif step["source"] != "agent":
        yield from (Found(f"{at}.{key}", "is of the agent only") for key in AGENT_ONLY if step.get(key) is not None)
    yield from _parts(step["message"], f"{at}.message")
    ids = []
    for index, call in enumerate(step.get("tool_calls") or ()):
        bad = CALL.check(call, f"{at}.tool_calls[{index}]")
        yield from bad
        ids += [] if bad else [call["tool_call_id"]]
    if step.get("observation"):
        yield from _check_observation(step["observation"], f"{at}.observation", ids)
    if step.get("metrics") is not None:
        yield from _check_metrics(step["metrics"], f"{at}.metrics")


def _parts(message: Any, at: str) -> Iterator[Found]:
    parts = message if isinstance(message, list) else []
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        yield Found(at, "holds parts that are no text, which no policy here can read")
        return
    for index, part in enumerate(parts):
        yield from PART.check(part, f"{at}[{index}]")


def _check_observation(observation: Any, at: str, ids: Sequence[str]) -> Iterator[Found]:
    found = OBSERVATION.check(observation, at)
    results = [] if found else observation["results"]
    for index, result in enumerate(results):
        bad = RESULT.check(result, f"{at}.results[{index}]")
        found += bad or _parts(result.get("content"), f"{at}.results[{index}].content")
    yield from found
    for index in [] if found else _paired(ids, results)[1]:
        named = results[index].get("source_call_id")
        told = (
            f"{named!r} is no call of this step" if named not in ids else f"the call {named!r} has its result already"
        )
        if named is None:
            told = "is missing, and no call of this step is left without a result"
        yield Found(f"{at}.results[{index}].source_call_id", told)


def _check_metrics(metrics: Any, at: str) -> Iterator[Found]:
    wrong = METRICS.check(metrics, at)
    yield from wrong
    if wrong:
        return
    for key in ("prompt_token_ids", "completion_token_ids"):
        if not all(type(id) is int and id >= 0 for id in metrics.get(key) or ()):
            yield Found(f"{at}.{key}", "must hold whole numbers from 0 on")
    ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
    if not all(type(value) in (int, float) and -math.inf < value < math.inf for value in logprobs or ()):
        yield Found(f"{at}.logprobs", "must hold numbers")
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        yield Found(f"{at}.logprobs", f"must be one for each completion token: {len(ids)}, found {len(logprobs)}")
