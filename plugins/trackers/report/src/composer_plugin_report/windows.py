"""Episodes that went on behind their window: how often, from how many tokens to how many, and what probes say of it.

A fold over the same records as `history`. Probes are rewards that weigh nothing; what they measure is told of the
episodes that had more than one window, since that is where something can get lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from attrs import Factory, define

from composer_core.tracking import read_events
from composer_core.types import SlotKey

Record = Mapping[str, Any]
Row = dict[str, float]
CLOSED, BEFORE, AFTER, PROBE = "windows filled", "tokens before", "tokens after", "probe "


@define
class Windows:
    """Add records in the order in which they happened; what a resumed run repeats replaces what it repeats."""

    rows: dict[str, dict[str, Row]] = Factory(dict)
    """Purpose -> id of the episode -> its figures; of one with a single window, none."""
    steps: dict[str, dict[int, Row]] = Factory(dict)
    """Stage -> step -> means over the episodes that ended since the step before."""
    _closed: dict[str, list[tuple[int, int]]] = Factory(dict)
    """Of running episodes: tokens before and after."""
    _ended: dict[str, list[Row]] = Factory(dict)
    """Purpose -> the episodes since the last step."""

    @classmethod
    def read(cls, run_dir: Path) -> Windows:
        """From a run folder; empty when it holds no events."""
        windows = cls()
        for record in read_events(run_dir):
            windows.add(record)
        return windows

    def add(self, record: Record) -> None:
        handler = _HANDLERS.get(record["event"])
        if handler is not None:
            handler(self, record)

    def table(self) -> list[tuple[str, int, int, Row]]:
        """(purpose, episodes, those of several windows, means over these), of purposes that have some."""
        several = {purpose: [row for row in rows.values() if row] for purpose, rows in self.rows.items()}
        return [(name, len(self.rows[name]), len(rows), means(rows)) for name, rows in several.items() if rows]

    def _forget(self, record: Record) -> None:
        self._closed.pop(record["episode_id"], None)

    def _context_compacted(self, record: Record) -> None:
        pair = record["tokens_before"], record["tokens_after"]
        self._closed.setdefault(record["episode_id"], []).append(pair)

    def _episode_ended(self, record: Record) -> None:
        result, purpose = record["result"], record["purpose"]
        id = SlotKey(**result["key"]).episode_id
        row = _row(self._closed.pop(id, []), result["scores"])
        self.rows.setdefault(purpose, {})[id] = row
        self._ended.setdefault(purpose, []).append(row)

    def _step_ended(self, record: Record) -> None:
        found = means(self._ended.pop(record["stage"], []))
        if found:
            self.steps.setdefault(record["stage"], {})[record["step"]] = found


_HANDLERS = {
    "EpisodeStarted": Windows._forget,
    "ContextCompacted": Windows._context_compacted,
    "EpisodeEnded": Windows._episode_ended,
    "EpisodeCancelled": Windows._forget,
    "StepEnded": Windows._step_ended,
}
"""Event name -> how it changes the fold."""
KINDS = frozenset(_HANDLERS)


def _row(closed: list[tuple[int, int]], scores: Iterable[Record]) -> Row:
    if not closed:
        return {}
    before, after = zip(*closed, strict=True)
    probes = {PROBE + score["reward"]: float(score["value"]) for score in scores if not score["weight"]}
    return {CLOSED: float(len(closed)), BEFORE: fmean(before), AFTER: fmean(after), **probes}


def means(rows: Iterable[Row]) -> Row:
    """Of windows filled over all rows, of everything else over those that have it; nothing where no row has any."""
    rows = list(rows)
    found = {name: fmean(row[name] for row in rows if name in row) for name in {n: 0 for row in rows for n in row}}
    return found and {**found, CLOSED: fmean(row.get(CLOSED, 0.0) for row in rows)}
