"""Closed branches of one attempt, a file each in the run's store, until the trace is whole.

An episode of a million tokens holds one window of them. What a lost process left behind is found by the attempt that is
made again; of it only what was sampled by committed weights counts, since the bytes of others may be gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from composer_core import Trace
from composer_core.protocols import Store
from composer_core.traces import decode, encode

FOLDER = "segments"


class StoredSegments(MutableMapping[int, Trace]):
    """By number of the branch. Raises StoreError for what cannot be written or read."""

    def __init__(self, store: Store, run_dir: Path, episode_id: str) -> None:
        self._store, self._run_dir = store, run_dir
        self._prefix = f"{FOLDER}/{episode_id}#"
        self._lost = {_number(uri): uri for uri in store.list(self._prefix)}
        self._own: dict[int, str] = {}

    def __setitem__(self, number: int, segment: Trace) -> None:
        self._own[number] = self._store.put(f"{self._prefix}{number}.trace", encode(segment))

    def __getitem__(self, number: int) -> Trace:
        if number in self._own:
            return decode(self._store.get(self._own[number]))
        segment = decode(self._store.get(self._lost[number]))
        if _newest(segment) > committed(self._run_dir):
            raise KeyError(number)
        return segment

    def __delitem__(self, number: int) -> None:
        self._store.delete(self._lost.pop(number, "") or self._own[number])
        self._own.pop(number, None)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._lost.keys() | self._own.keys()))

    def __len__(self) -> int:
        return len(self._lost.keys() | self._own.keys())

    def clear(self) -> None:
        """Without reading any."""
        for number in list(self):
            del self[number]


def committed(run_dir: Path) -> int:
    """Version of the weights in the run's last commit; 0 before the first."""
    manifest = run_dir / "commit.json"
    return int(json.loads(manifest.read_text(encoding="utf-8"))["weights"]["version"]) if manifest.exists() else 0


def _newest(segment: Trace) -> int:
    return max((version for branch in segment.branches for version, _ in branch.versions), default=-1)


def _number(uri: str) -> int:
    return int(uri.rpartition("#")[2].partition(".")[0])
