"""`effort`: what an episode has spent, on a scale on which little things cost most."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from composer_core import TaskView, Trace
from composer_core.types import Limits, Score, Turn
from composer_plugin_behavior.config import EffortConfig
from composer_plugin_behavior.gate import gated, score
from composer_plugin_behavior.reading import THOUGHT


def effort(group: Sequence[Trace], task: TaskView, config: EffortConfig) -> list[Score]:
    """-C(min(x, X)) / C(X): the share of the highest cost that an episode has run up.

        C(x) = ((1 + k x)^(1-q) - 1) / (k (1-q)),    at q = 1 its limit ln(1 + k x) / k

    C is 0 at 0 and its slope is (1 + k x)^-q: linear at q = 0, and the larger q, the cheaper is what comes late, so
    that an easy task is answered at once and a hard one is still worked on. x is a weighted sum of tokens (thinking,
    calls, results, final message), calls and turns; since turns cost, reads in parallel pay. X is x at the task's
    limits: all its tokens, a full window of results, a call in each turn. An unsolved episode is charged C(X), whatever
    its length.

    The tokens of a turn are counted exactly; on words and calls they are divided by their characters.

    Source: Composer 2 technical report (arXiv 2603.24477), section 4.2; k, q and the weights are not published there.
    """
    limit = at_limits(task.limits, config)
    most = cost(limit, config.k, config.q)
    found = []
    for trace in group:
        parts = spent(trace, config.ends)
        parts["x"] = weighed(parts, config)
        found.append(gated(trace, score(-cost(min(parts["x"], limit), config.k, config.q) / most, parts)))
    return found


def cost(x: float, k: float, q: float) -> float:
    """C(x); no digits are lost near q = 1."""
    grown = math.log1p(k * x)
    return (math.expm1((1 - q) * grown) / (1 - q) if q != 1 else grown) / k


def weighed(parts: Mapping[str, float], config: EffortConfig) -> float:
    """x."""
    return (
        config.thinking * parts["thinking_tokens"]
        + config.call * parts["call_tokens"]
        + config.result * parts["result_tokens"]
        + config.message * parts["message_tokens"]
        + config.calls * parts["calls"]
        + config.turns * parts["turns"]
    )


def at_limits(limits: Limits, config: EffortConfig) -> float:
    """X; the dearest kind of sampled token is taken for all."""
    dearest = max(config.thinking, config.call, config.message)
    rounds = (config.calls + config.turns) * limits.turns
    return dearest * limits.tokens + config.result * limits.context_tokens + rounds


def spent(trace: Trace, ends: Sequence[str]) -> dict[str, float]:
    """Tokens of each kind, calls and turns."""
    parts = dict.fromkeys(("thinking_tokens", "call_tokens", "message_tokens"), 0.0)
    for turn in trace.turns:
        chars = characters(turn, ends)
        whole = sum(chars.values())
        for kind, count in chars.items():
            parts[f"{kind}_tokens"] += (turn.stop - turn.start) * count / whole
    following = zip(trace.turns, trace.turns[1:], strict=False)
    parts["result_tokens"] = float(sum(b.start - a.stop for a, b in following if a.branch == b.branch))
    return {**parts, "calls": float(len(trace.calls())), "turns": float(len(trace.turns))}


def characters(turn: Turn, ends: Sequence[str]) -> dict[str, int]:
    """How the turn's tokens are divided: words before calls are thinking, words without calls a message."""
    thought = sum(map(len, THOUGHT.findall(turn.text)))
    words = len(turn.text) - thought
    last = [call for call in turn.calls if call.name in ends]
    calls = sum(len(call.name) + _size(call.arguments) for call in turn.calls if call not in last)
    told = sum(_size(call.arguments) for call in last)
    if turn.calls or turn.purpose != "act":
        return {"thinking": thought + words, "call": max(calls, not (thought + words + told)), "message": told}
    return {"thinking": thought, "call": 0, "message": max(words, not thought)}


def _size(arguments: Mapping[str, object]) -> int:
    return len(json.dumps(dict(arguments), default=str))
