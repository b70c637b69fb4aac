"""The sampler `logbook/reader`: a demonstrator that works from its window alone.

It looks at the ids it is shown and at nothing else: a setting that no longer stands in its window is unknown to it, and
what is due is what its window names last. So it acts in any context, and what a context loses is lost to it. Its copies
are without error; its one weakness is that a summary leaves out each setting with probability 1 - `kept`, by a draw of
its own, alike in both ways of summing up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from composer_core import BuildContext, Column
from composer_core.errors import ConfigError
from composer_core.noise import key_of, uniform
from composer_core.types import Call, Completion, GenerateRequest, GenerateSettings, ParsedTurn, WeightsRef
from composer_plugin_logbook.books import Book
from composer_plugin_logbook.config import ReaderConfig
from composer_plugin_logbook.summaries import WAYS
from composer_plugin_logbook.tasks import Books


class Reader:
    """`protocols.Sampler`; log-probabilities are 0 and the version is 0."""

    def __init__(self, config: ReaderConfig, build: BuildContext) -> None:
        self._config, self._build = config, build
        self._tokens = 0

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        tasks = self._build.get("tasks")
        if not isinstance(tasks, Books):
            raise ConfigError("it reads logbooks only", who="logbook/reader", where="tasks.use", fix="logbook/books")
        window = self._build.get("tokenizer").decode(list(ids))
        turn = said(tasks.book(request.task_id), window, self._config, key_of(request.noise, request.position))
        rendered = self._build.get("renderers").render(turn)
        given = rendered[: settings.max_tokens]
        self._tokens += len(given)
        return Completion(
            ids=Column.of("I32", given),
            logprobs=Column.of("F32", [0.0] * len(given)),
            versions=((0, len(given)),),
            stop="stop" if len(given) == len(rendered) else "length",
        )

    async def load(self, weights: WeightsRef, path: Path) -> None:
        """It has no weights."""

    async def release(self, session: str) -> None:
        """It has no cache."""

    def stats(self) -> Mapping[str, float]:
        return {"tokens": float(self._tokens)}

    async def close(self) -> None:
        """Nothing is held."""


def said(book: Book, window: str, config: ReaderConfig, key: int) -> ParsedTurn:
    """The turn that the window calls for; `key` draws what a summary leaves out."""
    known = [fact for fact in book.facts if f" {fact}" in window]
    due = max(book.due, key=window.rfind)
    if config.request_word in window:
        kept = [fact for at, fact in enumerate(known) if uniform(key, at) < config.kept]
        return ParsedTurn(text=WAYS[config.summary](kept, due))
    if due not in window:
        return call("turn")
    act, _, what = due.partition(" ")
    if act == "turn":
        return call("turn", word=f" {what}")
    return call("answer", text=" " + next((fact for fact in known if fact.startswith(what)), f"{what} unknown"))


def call(name: str, **arguments: str) -> ParsedTurn:
    """A turn of one call and no words."""
    return ParsedTurn(text="", calls=(Call(id="0", name=name, arguments=arguments),))


def build(config: ReaderConfig, build: BuildContext) -> Reader:
    """Factory of the record."""
    return Reader(config, build)
