"""A process of its own: one episode of so many calls under `summary/self`, and the most memory it took.

Usage: python long_episode.py FOLDER TOKENS CALLS [STOP_AFTER]. Prints JSON. With STOP_AFTER the process ends itself
when that many calls have been sampled, as a kill would end it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define

from composer_core.columns import Column
from composer_core.summary import peak_rss_bytes
from composer_core.types import Call, Completion, Limits, ParsedTurn
from composer_plugin_summary.config import SummaryConfig
from composer_plugin_summary.summarize import Summarizing
from composer_testing.episodes import RENDERER, Situation, build_context, play

WINDOW, TRIGGER, TURN_TOKENS = 40_000, 20_000, 5_000


@define
class Worker:
    """Writes a file in each turn, sums up when it is asked, and finishes after so many calls; remembers nothing.

    All its turns have `row_tokens`, so what it has done follows from what the request says.
    """

    row_tokens: int
    calls: int
    stop_after: int
    generations: int = 0
    peak_bytes: int = 0

    async def generate(self, ids: Sequence[int], settings: Any, request: Any) -> Completion:
        self.generations += 1
        self.peak_bytes = peak_rss_bytes()
        summaries = int(request.session.partition("#")[2].partition("/")[0])
        made = request.position // self.row_tokens - summaries
        if made == self.stop_after:
            os._exit(9)
        row = self._row(asked=settings.max_tokens != TURN_TOKENS, last=made + 1 == self.calls)
        logprobs = Column.of("F32", [-0.5] * len(row))
        return Completion(Column.of("I32", row), logprobs, ((0, len(row)),), "stop")

    def _row(self, asked: bool, last: bool) -> list[int]:
        if asked:
            return RENDERER.render(ParsedTurn("s" * (self.row_tokens - 1)))
        if last:
            return RENDERER.render(ParsedTurn("", (Call("c0", "done", {}),)))
        empty = RENDERER.render(ParsedTurn("", (write(""),)))
        return RENDERER.render(ParsedTurn("", (write("x" * (self.row_tokens - len(empty))),)))

    async def release(self, session: str) -> None:
        """It keeps nothing."""


def write(text: str) -> Call:
    return Call("c0", "write", {"path": "a", "text": text})


def main(folder: Path, tokens: int, calls: int, stop_after: int = -1) -> None:
    limits = Limits(turns=10**6, tokens=10**9, turn_tokens=TURN_TOKENS, context_tokens=WINDOW)
    context = Summarizing(SummaryConfig(trigger_tokens=TRIGGER, summary_tokens=4000), build_context(folder))
    worker = Worker(tokens // calls, calls, stop_after)
    before = peak_rss_bytes()
    trace = play(worker, context, Situation(limits=limits))
    told = {
        "stop": trace.stop,
        "tokens": sum(map(len, trace.branches)),
        "sampled_tokens": trace.sampled_tokens(),
        "calls": len(trace.calls()),
        "branches": len(trace.branches),
        "generations": worker.generations,
        "acting_bytes": worker.peak_bytes - before,
        "whole_bytes": peak_rss_bytes() - before,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
