"""`todos`: what an agent has said it will do and then left open."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from composer_core import Trace
from composer_core.types import Score
from composer_plugin_behavior.config import TodosConfig
from composer_plugin_behavior.gate import gated, score
from composer_plugin_behavior.reading import executed

OPEN = ("pending", "in_progress")


def todos(group: Sequence[Trace], config: TodosConfig) -> list[Score]:
    """-(open + dropped) / opened; 0 where no to-do was opened.

    The calls that wrote the list are replayed. Opened are all to-dos that were ever open (pending or in progress):
    those that are written down as done already would only thin out the others. Open are those that are so at the end,
    dropped those that were taken off the list while they were: a list that is emptied in the last turn is no list that
    was worked off. A to-do that is cancelled has been decided on and is not open.

    Source: to-do items that are opened and left unfinished are the Composer 2 report's example of a product penalty
    (arXiv 2603.24477, section 4.2).
    """
    return [gated(trace, _of(trace, config)) for trace in group]


def _of(trace: Trace, config: TodosConfig) -> Score:
    opened, left, dropped = replayed(trace, config.tools)
    parts = {"opened": float(len(opened)), "open": float(len(left)), "dropped": float(len(dropped))}
    return score(-len(left | dropped) / max(1, len(opened)), parts)


def replayed(trace: Trace, tools: Sequence[str]) -> tuple[set[str], set[str], set[str]]:
    """Ids of to-dos that were ever open, that are at the end, and that were dropped while they were."""
    now: dict[str, str] = {}
    opened: set[str] = set()
    dropped: set[str] = set()
    for turn in trace.turns:
        for call, result in executed(turn):
            if call.name not in tools or not result.ok:
                continue
            given = {str(item["id"]): str(item.get("status", "pending")) for item in _items(call.arguments)}
            merges = str(call.arguments.get("merge", "")).lower() == "true"
            kept = {**now, **given} if merges else given
            dropped = (dropped | _open(now)) - set(kept)
            now = kept
            opened |= _open(now)
    return opened, _open(now), dropped


def _open(statuses: Mapping[str, str]) -> set[str]:
    return {id for id, status in statuses.items() if status in OPEN}


def _items(arguments: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The to-dos of a call; formats whose values are texts spell them as JSON, or nearly so."""
    items = arguments.get("items", [])
    if isinstance(items, str):
        items = _read(items)
    return [item for item in items if isinstance(item, Mapping) and "id" in item]


def _read(text: str) -> Any:
    for reader in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return reader(text)
    return []
