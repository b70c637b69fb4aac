"""A sampler that says what a script says: no model, no noise, exact log-probabilities of -0.5.

The script is a mapping from task id to that task's turns (rows of ids, the stop id included), or a function of the
request and the ids so far. A task that has no turn left is a SamplerError: a test should never wait for words that
nobody wrote. Time passes only on the clock it was given.

As `fakes/scripted` it plays calls of the run file in every episode, through the run's own renderer. So a tool of yours
is called in a run of the fakes, and `composer-run show RUN_DIR --trace ID` tells what the model would have read:

    sampler = { use = "fakes/scripted", calls = [{ name = "word_count", arguments = { path = "answer.txt" } }] }
"""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from composer_core.columns import Column
from composer_core.errors import SamplerError
from composer_core.protocols import BuildContext
from composer_core.types import Call, Completion, GenerateRequest, GenerateSettings, ParsedTurn, WeightsRef
from composer_testing.fakes.config import ScriptedConfig

LOGPROB = -0.5

Turns = Mapping[str, Sequence[Sequence[int]]]
Script = Callable[[GenerateRequest, Sequence[int]], Sequence[int]]


class ScriptedSampler:
    """Satisfies `protocols.Sampler`."""

    def __init__(
        self,
        script: Script | Turns,
        *,
        delay_s: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.version = 0
        self.loaded: list[WeightsRef] = []
        """Every set of weights it was given, in order."""
        self.requests: list[tuple[GenerateRequest, tuple[int, ...]]] = []
        """Every generation asked for, with the ids it continued."""
        self.released: list[str] = []
        self.closed = False
        self._script = script if callable(script) else _turns(script)
        self._delay_s = delay_s
        self._sleep = sleep
        self._tokens = 0

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        """The script's next row, cut after the first stop id and at `max_tokens`."""
        if self.closed:
            raise SamplerError("the sampler is closed")
        self.requests.append((request, tuple(ids)))
        started = self.version
        if self._delay_s:
            await self._sleep(self._delay_s)
        row = list(self._script(request, ids))
        ends = [index for index, token in enumerate(row) if token in settings.stop_ids]
        row = row[: min([settings.max_tokens, *(end + 1 for end in ends)])]
        self._tokens += len(row)
        return Completion(
            ids=Column.of("I32", row),
            logprobs=Column.of("F32", [LOGPROB] * len(row)),
            versions=((self.version, len(row)),) if row else (),
            stop="stop" if row and row[-1] in settings.stop_ids else "length",
            cache_version=started,
        )

    async def load(self, weights: WeightsRef, path: Path) -> None:
        self.version = weights.version
        self.loaded.append(weights)

    async def release(self, session: str) -> None:
        self.released.append(session)

    def stats(self) -> Mapping[str, float]:
        return {"tokens": float(self._tokens), "version": float(self.version), "busy_s": 0.0}

    async def close(self) -> None:
        self.closed = True


def _turns(rows: Turns) -> Script:
    """Each session plays its task's turns from the first on."""
    played: Counter[str] = Counter()

    def script(request: GenerateRequest, ids: Sequence[int]) -> Sequence[int]:
        turns = rows.get(request.task_id)
        turn = played[request.session]
        if turns is None or turn >= len(turns):
            said = "no script" if turns is None else f"{len(turns)} turns, all played"
            raise SamplerError(f"nothing to say for task {request.task_id!r}", found=said)
        played[request.session] += 1
        return turns[turn]

    return script


def build_scripted(config: ScriptedConfig, build: BuildContext) -> ScriptedSampler:
    """A turn for each call and one without; which is due follows from the tokens that an episode has sampled."""
    renderer = build.get("renderers")
    turns = [ParsedTurn("", (Call("", call.name, call.arguments),)) for call in config.calls]
    rows = [renderer.render(turn) for turn in (*turns, ParsedTurn("The script is over.", ()))]
    starts = list(accumulate(map(len, rows[:-1]), initial=0))
    return ScriptedSampler(lambda request, ids: rows[bisect(starts, request.position) - 1])
