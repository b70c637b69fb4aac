"""What a training step consumes, as a pure function of (run seed, stage, step), so a resumed run repeats nothing.

Pretraining windows come from text or from the copying exercise: random ids repeated with a period, which teaches a
small transformer to look back (induction heads, Olsson et al. 2022) before it meets text that cannot be memorized.
Sequences of episodes are the branches of their traces with exactly the ids and log-probabilities that were sampled.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from attrs import frozen

from composer_core.columns import Column
from composer_core.config import PretrainStage
from composer_core.noise import bits, key_of, shuffled
from composer_core.protocols import TaskSet, Tokenizer
from composer_core.types import Branch, Hint, Trace, TrainSequence

SHORTEST_PERIOD = 8


class TextWindows:
    """Windows of packed documents; each epoch packs them in another order."""

    def __init__(self, name: str, size: int, documents: Sequence[Sequence[int]], seed: int) -> None:
        self._name, self._size, self._seed = name, size, seed
        self._documents = documents
        self._windows = max(1, sum(len(document) for document in documents) // size)
        self._epoch = -1
        self._packed: array[int] = array("i")

    def window(self, index: int) -> TrainSequence:
        epoch, place = divmod(index, self._windows)
        if epoch != self._epoch:
            order = shuffled(list(range(len(self._documents))), key_of(self._seed, self._name, epoch))
            self._packed = array("i", [token for number in order for token in self._documents[number]])
            self._epoch = epoch
        return text_sequence(self._packed[place * self._size : (place + 1) * self._size], 0)


class CopyingWindows:
    """Random ids with a random period; the loss applies from the second period on."""

    def __init__(self, name: str, size: int, vocabulary: Sequence[int], seed: int) -> None:
        self._size, self._vocabulary = size, vocabulary
        self._key = key_of(seed, name, "copying")

    def window(self, index: int) -> TrainSequence:
        size, words = self._size, self._vocabulary
        base = index * (size + 1)
        period = SHORTEST_PERIOD + bits(self._key, base) % max(1, size // 2 - SHORTEST_PERIOD)
        draws = [words[bits(self._key, base + 1 + i) % len(words)] for i in range(period)]
        return text_sequence(array("i", [draws[i % period] for i in range(size)]), period)


@frozen
class Windows:
    """The batches of a pretrain stage, mixed from its sources."""

    stage: PretrainStage
    text: TextWindows | None
    copying: CopyingWindows

    def batch(self, step: int) -> list[TrainSequence]:
        count = self.stage.batch_windows
        copied = count if self.text is None else round(count * self.stage.copying_share)
        rows = [self.copying.window(step * copied + place) for place in range(copied)]
        if self.text is not None:
            rows += [self.text.window(step * (count - copied) + place) for place in range(count - copied)]
        return rows


def pretrain_windows(
    stage: PretrainStage, tasks: TaskSet, tokenizer: Tokenizer, special: Sequence[str], seed: int
) -> Windows:
    """The stage's source of windows."""
    control = {tokenizer.special(token) for token in special}
    vocabulary = [i for i in range(tokenizer.vocab_size) if i not in control]
    copying = CopyingWindows(stage.name, stage.window_tokens, vocabulary, seed)
    if stage.source == "copying":
        return Windows(stage, None, copying)
    documents = [tokenizer.encode(text + "\n") for text in tasks.texts(stage.split)]
    return Windows(stage, TextWindows(stage.name, stage.window_tokens, documents, seed), copying)


def text_sequence(ids: array[int], untrained: int) -> TrainSequence:
    trained = bytes(min(max(1, untrained), len(ids))) + b"\x01" * (len(ids) - max(1, untrained))
    return TrainSequence(Column.of("I32", ids), Column("U8", (len(ids),), trained))


def sequences_of(trace: Trace, episode: int, temperature: float, version: int | None = None) -> list[TrainSequence]:
    """One sequence for each branch of a trace.

    `version` is the trainer's: tokens sampled by it over a cache of its own are comparable (RL.md section 4).
    """
    return [
        TrainSequence(
            ids=branch.ids,
            trained=branch.sampled,
            episode=episode,
            segment=number,
            behavior=branch.logprobs,
            versions=branch.versions,
            routes=branch.routes,
            comparable=None if version is None else _comparable(trace, number, branch, version),
            temperature=temperature,
            hints=tuple(
                Hint(turn.start, turn.stop, score.hints[turn.index])
                for turn in trace.turns
                for score in trace.scores
                if turn.branch == number and turn.index in score.hints
            ),
        )
        for number, branch in enumerate(trace.branches)
    ]


def _comparable(trace: Trace, number: int, branch: Branch, version: int) -> Column:
    """1 where the id and its whole sampled prefix carry `version`, over a cache of that version."""
    flags = bytearray(len(branch))
    for turn in trace.turns:
        if turn.branch != number:
            continue
        if turn.cache_version != version or any(v != version for v in _versions(branch, turn.start, turn.stop)):
            break
        flags[turn.start : turn.stop] = b"\x01" * (turn.stop - turn.start)
    return Column("U8", (len(flags),), bytes(flags))


def _versions(branch: Branch, start: int, stop: int) -> Iterator[int]:
    place = 0
    for value, count in branch.versions:
        if place < stop and place + count > start:
            yield value
        place += count


def epoch_order(size: int, count: int, step: int, *parts: object) -> list[int]:
    """Indexes of the `count` items of a step, when items are drawn epoch by epoch without replacement."""
    chosen: list[int] = []
    place = step * count
    while len(chosen) < count:
        epoch, offset = divmod(place + len(chosen), size)
        order = shuffled(list(range(size)), key_of(*parts, epoch))
        chosen.extend(order[offset : offset + count - len(chosen)])
    return chosen
