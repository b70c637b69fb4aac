"""Turns as text for the agent to read: nothing in it that differs between two equal episodes, such as times."""

from __future__ import annotations

import json
from collections.abc import Iterable

from composer_core.types import Turn


def told(turns: Iterable[Turn]) -> str:
    """Words, calls and results of turns that acted; what was asked by a context is no part of the work."""
    return "\n\n".join(_told(turn) for turn in turns if turn.purpose == "act")


def _told(turn: Turn) -> str:
    lines = [turn.text] if turn.text else []
    for call, result in zip(turn.calls, turn.results, strict=False):
        lines += [f"> {call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}", result.text]
    return "\n".join(lines)
