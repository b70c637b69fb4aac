"""status.json: what the loop of an RL stage says of itself about once a second, read as far as it can be understood.

The file is replaced whole, so it is never seen half written. What this version does not know is left out, and what is
of another type than expected counts as not told: the view goes on with the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, frozen

MOST_NAMES = 400
"""Read of one table; a cluster's executor has a few figures for each of its workers."""


@frozen
class Episode:
    """One that is under way."""

    task: str
    group: int | None
    slot: int | None
    for_s: float
    """Since it was handed to the executor."""


@frozen
class Status:
    """One state of a stage."""

    time_s: float
    """When it was written, in seconds since the Unix epoch."""
    stage: str = ""
    step: int | None = None
    version: int | None = None
    """The trainer's."""
    waits_for: str = ""
    """What the loop needs to go on."""
    tables: Mapping[str, Mapping[str, int]] = Factory(dict)
    """The ledger's tables: slots, groups, versions, staleness, voids, dropped, ..."""
    counts: Mapping[str, int] = Factory(dict)
    """The ledger's single numbers: admitted, capacity, lost, ..."""
    executor: Mapping[str, float] = Factory(dict)
    oldest: tuple[Episode, ...] = ()
    """Episodes under way, those that began first."""


def read_status(run_dir: Path) -> tuple[Status | None, str]:
    """The status and "", or None and what is wrong with it; both are empty where there is no such file."""
    try:
        data = json.loads((run_dir / "status.json").read_bytes())
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, RecursionError) as error:
        return None, f"status.json cannot be read: {error}"
    time_s = _number(data.get("time_s")) if isinstance(data, dict) else None
    if time_s is None:
        return None, "status.json is not one that this version knows: it has no time_s"
    ledger = data.get("ledger") if isinstance(data.get("ledger"), dict) else {}
    return (
        Status(
            time_s=time_s,
            stage=_text(data.get("stage")),
            step=_count(data.get("step")),
            version=_count(data.get("version")),
            waits_for=_text(data.get("waits_for")),
            tables={name: _counts(value) for name, value in _few(ledger) if isinstance(value, dict)},
            counts=_counts(ledger),
            executor=_numbers(data.get("executor")),
            oldest=_episodes(data.get("running")),
        ),
        "",
    )


def _few(value: Any) -> list[tuple[str, Any]]:
    return list(value.items())[:MOST_NAMES] if isinstance(value, dict) else []


def _counts(value: Any) -> dict[str, int]:
    return {name: number for name, found in _few(value) if (number := _count(found)) is not None}


def _numbers(value: Any) -> dict[str, float]:
    return {name: number for name, found in _few(value) if (number := _number(found)) is not None}


def _episodes(value: Any) -> tuple[Episode, ...]:
    rows = [row for row in value[:MOST_NAMES] if isinstance(row, dict)] if isinstance(value, list) else []
    return tuple(
        Episode(
            _text(row.get("task")), _count(row.get("group")), _count(row.get("slot")), _number(row.get("for_s")) or 0.0
        )
        for row in rows
    )


def _number(value: Any) -> float | None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fits else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
