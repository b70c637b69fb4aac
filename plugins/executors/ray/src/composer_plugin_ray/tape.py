"""What an episode has sampled, written down turn by turn, so that an attempt that was lost goes on where it was.

An attempt that is made again plays its tape: the policy says what it said, with the log-probabilities, expert ids and
versions of then, and tools run again in a fresh sandbox. So files, processes and sessions are made anew by what made
them, and no sandbox has to offer snapshots that outlive the process that took them; what is saved is the sampling. The
tape ends where the policy is asked something else than then (a tool answered otherwise); from there on it samples.

A tape is of one life of the controller: after a resume, versions that no commit holds are given to other weights. It is
not for deterministic runs, which replay a lost episode from its first token. No Ray here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from array import array
from collections.abc import Sequence
from contextvars import ContextVar

from attrs import define, evolve

from composer_core.columns import pack, unpack
from composer_core.errors import StoreError
from composer_core.protocols import Store
from composer_core.types import Completion, EpisodeResult

FOLDER = "tapes"


@define
class Tape:
    """Of one attempt."""

    store: Store
    key: str
    """Prefix of its blobs."""
    plays: bool
    """Whether what is on it is still what happens; only of an attempt that is made again."""
    turn: int = 0
    """Of the next completion."""
    played: int = 0
    """Turns that were not sampled again."""

    async def play(self, ids: Sequence[int]) -> Completion | None:
        """What was sampled after exactly these ids; None when the tape has ended."""
        found = await asyncio.to_thread(self._read, _digest(ids)) if self.plays else None
        self.plays = found is not None
        self.turn += self.plays
        self.played += self.plays
        return found

    async def keep(self, ids: Sequence[int], completion: Completion) -> None:
        """Raises StoreError when it cannot be written."""
        await asyncio.to_thread(self.store.put, self._at(self.turn), _packed(_digest(ids), completion))
        self.turn += 1

    async def ended(self, result: EpisodeResult) -> EpisodeResult:
        """A lost attempt leaves its tape behind; any other tells how much was played, and leaves nothing."""
        if result.verdict.lost:
            return result
        await asyncio.to_thread(self._erase)
        return evolve(result, stats={**result.stats, "played_turns": float(self.played)})

    def _at(self, turn: int) -> str:
        return f"{self.key}.{turn}"

    def _erase(self) -> None:
        for turn in range(self.turn):
            self.store.delete(self._at(turn))

    def _read(self, prompt: str) -> Completion | None:
        try:
            columns, told = unpack(self.store.get(self._at(self.turn)))
        except StoreError:  # it was lost before this turn, or while it was written down
            return None
        if told["prompt"] != prompt:
            return None
        rest = json.loads(told["rest"])
        return Completion(
            ids=columns["ids"],
            logprobs=columns["logprobs"],
            versions=tuple((value, count) for value, count in rest.pop("versions")),
            routes=columns.get("routes"),
            **rest,
        )


TAPE: ContextVar[Tape | None] = ContextVar("tape", default=None)
"""Of the running episode, if its run keeps tapes."""


def folder() -> str:
    """Where the tapes of this life of the controller lie."""
    return f"{FOLDER}/{secrets.token_hex(8)}"


def erase(store: Store) -> None:
    """All there are, those of an earlier life too."""
    for uri in store.list(f"{FOLDER}/"):
        store.delete(uri)


def _packed(prompt: str, completion: Completion) -> bytes:
    columns = {"ids": completion.ids, "logprobs": completion.logprobs}
    if completion.routes is not None:
        columns["routes"] = completion.routes
    rest = {
        "versions": completion.versions,
        "stop": completion.stop,
        "cache_version": completion.cache_version,
    }
    return pack(columns, {"prompt": prompt, "rest": json.dumps(rest)})


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(array("i", ids)).hexdigest()
