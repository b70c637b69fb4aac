"""The sampler `drills/guesser`: how far one gets without knowing what a function should do. A control of evaluation.

From the training split it counts, for each exchange (buggy fragment -> correct fragment, by operator), how often it
repairs a bug, and how often the same exchange would be possible in the buggy files. Given a buggy file and nothing
else it makes the possible exchange with the largest ratio of the two: the best guess of a policy that has learned
how bugs look and nothing about the code. It is told which file to read, which favors it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from itertools import islice

from composer_core.noise import bits, key_of
from composer_core.protocols import BuildContext
from composer_core.types import GenerateRequest, ParsedTurn
from composer_plugin_drills.config import GuesserConfig
from composer_plugin_drills.drills import Drill, drills
from composer_plugin_drills.mutations import Mutation, mutate
from composer_plugin_drills.script import ScriptedSampler, edit, finish, read

Exchange = tuple[str, str, str]


class Guesser(ScriptedSampler):
    """Reads, makes the likeliest edit, finishes."""

    def __init__(self, config: GuesserConfig, build: BuildContext) -> None:
        super().__init__(build)
        self.config = config
        self._counting: asyncio.Future[dict[Exchange, float]] | None = None
        self._odds: dict[Exchange, float] = {}
        self._guesses: dict[str, Mutation | None] = {}

    async def prepare(self) -> None:
        """Count once, on one thread: it takes seconds."""
        if self._counting is None:
            self._counting = asyncio.ensure_future(asyncio.to_thread(count_odds, self.config.sample))
        self._odds = await asyncio.shield(self._counting)

    def guess(self, drill: Drill) -> Mutation | None:
        """The likeliest repair of a buggy file; ties are broken by noise of the task alone."""
        if drill.id not in self._guesses:
            self._guesses[drill.id] = likeliest(drill, self._odds)
        return self._guesses[drill.id]

    def script(self, request: GenerateRequest) -> list[ParsedTurn]:
        drill = self.drills.drill(request.task_id)
        guess = self.guess(drill)
        if guess is None:
            return [read(drill.path), finish()]
        return [read(drill.path), edit(drill.path, drill.buggy, guess.line, guess.after), finish()]


def likeliest(drill: Drill, odds: Mapping[Exchange, float]) -> Mutation | None:
    """The possible exchange with the best odds, or None if there is none."""
    key = key_of("guess", drill.id)
    guesses = list(enumerate(_guesses(drill)))
    best = max(guesses, key=lambda one: (odds.get(_exchange(one[1]), 0.0), bits(key, one[0])), default=None)
    return None if best is None else best[1]


def count_odds(sample: int) -> dict[Exchange, float]:
    """Exchange -> share of its possible uses that were the right repair, over the first training drills."""
    possible: Counter[Exchange] = Counter()
    right: Counter[Exchange] = Counter()
    for drill in islice((drill for drill in drills().values() if drill.split == "train"), sample):
        for guess in _guesses(drill):
            possible[_exchange(guess)] += 1
            right[_exchange(guess)] += (guess.line, guess.after) == (drill.line, drill.before)
    return {exchange: right[exchange] / count for exchange, count in possible.items()}


def _guesses(drill: Drill) -> list[Mutation]:
    return mutate(drill.buggy, drill.function.name)


def _exchange(one: Mutation) -> Exchange:
    return one.operator, one.fragment, one.replacement


def build(config: GuesserConfig, build: BuildContext) -> Guesser:
    """Factory of the record."""
    return Guesser(config, build)
