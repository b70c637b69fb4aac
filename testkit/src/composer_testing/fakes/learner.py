"""A sampler that gets better with every version: it writes the right sum with a probability that grows.

What it does is a pure function of (version, noise), so a run of fakes is reproducible to the byte. Its log-probability
is that of the choice it made, spread over the turn's ids.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from composer_core.columns import Column
from composer_core.noise import uniform
from composer_core.protocols import BuildContext, Renderer, Tokenizer
from composer_core.types import (
    Call,
    Completion,
    GenerateRequest,
    GenerateSettings,
    ParsedTurn,
    WeightsRef,
)
from composer_testing.fakes.config import LearnerConfig

PROMPT = re.compile(r"write (\d+) plus (\d+) into")
CHOICE, BREAK, LOOKS = 1 << 20, 1 << 21, 1 << 22
"""Positions of the noise that decide, away from those of tokens."""


class Learner:
    """`protocols.Sampler`; knows prompts of the task set `fakes/sums` only."""

    def __init__(self, config: LearnerConfig, renderer: Renderer, tokenizer: Tokenizer) -> None:
        self._config, self._renderer, self._tokenizer = config, renderer, tokenizer
        self._look = ParsedTurn("", (Call("c0", "read", {"path": "answer.txt"}),))
        self._look_tokens = len(renderer.render(self._look))
        self._version = 0
        self._tokens = 0
        self._broken: Counter[tuple[str, int]] = Counter()

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        self._break(request)
        share = min(0.95, self._config.start + self._config.gain * self._version)
        solves = uniform(request.noise, CHOICE) < share
        turn = self._renderer.render(self._turn(ids, request, solves))[: settings.max_tokens]
        await asyncio.sleep(self._config.turn_s)
        self._tokens += len(turn)
        logprob = math.log(share if solves else 1 - share) / len(turn)
        return Completion(
            ids=Column.of("I32", turn),
            logprobs=Column.of("F32", [logprob] * len(turn)),
            versions=((self._version, len(turn)),),
            stop="stop" if turn[-1] in settings.stop_ids else "length",
            cache_version=self._version,
        )

    def _turn(self, ids: Sequence[int], request: GenerateRequest, solves: bool) -> ParsedTurn:
        looks = int(uniform(request.noise, LOOKS) * (self._config.looks + 1))
        if request.position < looks * self._look_tokens:
            return self._look
        if request.position > looks * self._look_tokens:
            return ParsedTurn("", (Call("c0", "done", {}),))
        a, b = PROMPT.findall(self._tokenizer.decode(ids))[0]
        text = str(int(a) + int(b) if solves else 0)
        return ParsedTurn("", (Call("c0", "write", {"path": "answer.txt", "text": text}),))

    def _break(self, request: GenerateRequest) -> None:
        key = (request.task_id, request.attempt)
        if self._broken[key] < self._config.voids_each and uniform(request.noise, BREAK) < self._config.void_share:
            self._broken[key] += 1
            raise OSError("the scripted fault of this attempt")

    async def load(self, weights: WeightsRef, path: Path) -> None:
        path.read_bytes()
        self._version = weights.version

    async def release(self, session: str) -> None:
        pass

    def stats(self) -> Mapping[str, float]:
        return {"tokens": float(self._tokens)}

    async def close(self) -> None:
        pass


def build_learner(config: LearnerConfig, build: BuildContext) -> Learner:
    return Learner(config, build.get("renderers"), build.get("tokenizer"))
