"""A bigram sampler: row i of a table holds the logits of whatever comes after id i. V: ids of the vocabulary.

A token takes microseconds here, so generations take turns on the event loop, and whatever they meet between two tokens
(new weights, a cancellation, the end) needs no lock. A sampler that computes for longer owns a thread.
"""

import asyncio
import hashlib
import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path

from composer_core import BuildContext, Column, NoConfig
from composer_core.columns import unpack
from composer_core.errors import SamplerError, StoreError
from composer_core.noise import uniform
from composer_core.types import Completion, GenerateRequest, GenerateSettings, WeightsRef

TABLE = "bigram.logits"
"""The one tensor of a weights file: F32 [V, V]."""


class MyNameSampler:
    """`protocols.Sampler`; ids are a function of weights, prompt and noise, whatever else is in flight."""

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        self._vocab_size: int = build.get("tokenizer").vocab_size
        self._table: Sequence[float] = array("f", bytes(4 * self._vocab_size**2))
        self._version = self._tokens = 0
        self._closed = False

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        """Continue `ids`; a stop id that was drawn is part of the result. SamplerError makes the episode void."""
        if not ids:
            raise SamplerError("nothing to continue: the prompt has no ids")
        drawn: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        stop = "length"
        while len(drawn) < settings.max_tokens and stop == "length":
            await asyncio.sleep(0)
            if self._closed:
                raise SamplerError("the sampler is closed")
            noise = uniform(request.noise, request.position + len(drawn))
            chosen, logprob = draw(self._row((drawn or ids)[-1]), settings.temperature, noise)
            drawn.append(chosen)
            logprobs.append(logprob)
            versions.append(self._version)
            self._tokens += 1
            stop = "stop" if chosen in settings.stop_ids else "length"
        return Completion(
            ids=Column.of("I32", drawn),
            logprobs=Column.of("F32", logprobs),
            versions=tuple((version, len(list(run))) for version, run in groupby(versions)),
            stop=stop,
            cache_version=self._version,  # there is no cache that could be older than the weights
        )

    def _row(self, last: int) -> Sequence[float]:
        if not 0 <= last < self._vocab_size:
            raise SamplerError(f"id {last} is not of this vocabulary", expected=f"0 to {self._vocab_size - 1}")
        return self._table[last * self._vocab_size : (last + 1) * self._vocab_size]

    async def load(self, weights: WeightsRef, path: Path) -> None:
        """Read beside the generations, swap between two tokens; StoreError when the file is not what it should be."""
        self._table = await asyncio.to_thread(_read, weights, path, self._vocab_size)
        self._version = weights.version

    async def release(self, session: str) -> None:
        """Nothing is kept for a session: the last id is all the past there is."""

    def stats(self) -> Mapping[str, float]:
        """Counters since the start."""
        return {"tokens": float(self._tokens)}

    async def close(self) -> None:
        """Generations in flight end with SamplerError before their next token; safe twice."""
        self._closed = True


def draw(logits_V: Sequence[float], temperature: float, noise: float) -> tuple[int, float]:
    """An id and its log-probability in softmax(logits / temperature), by `noise` in [0, 1) through the summed masses.

    Temperature 0 is greedy, with the log-probability at temperature 1. An id without mass is never drawn.
    """
    scale, top = temperature or 1.0, max(logits_V)
    mass_V = list(accumulate(math.exp((logit - top) / scale) for logit in logits_V))
    if not math.isfinite(mass_V[-1]):
        raise SamplerError("the weights hold a logit that is not finite")
    chosen = bisect_right(mass_V, noise * mass_V[-1]) if temperature else logits_V.index(top)
    return chosen, (logits_V[chosen] - top) / scale - math.log(mass_V[-1])


def _read(weights: WeightsRef, path: Path, vocab_size: int) -> Sequence[float]:
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if weights.checksum and found != weights.checksum:
        raise StoreError(f"weights of version {weights.version} are damaged", expected=weights.checksum, found=found)
    column = unpack(data)[0].get(TABLE)
    if column is None or (column.dtype, column.shape) != ("F32", (vocab_size, vocab_size)):
        raise StoreError("no weights of a bigram", where=str(path), expected=f"{TABLE}: F32 {[vocab_size] * 2}")
    return column.values()
