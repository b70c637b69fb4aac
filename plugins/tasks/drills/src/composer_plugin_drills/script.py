"""What the two scripted samplers share: a script of turns, rendered to canonical ids and played back.

A script depends on the task and the attempt's noise only. Which turn is due follows from how many tokens the episode
has sampled so far, so nothing is remembered between calls: a re-issued attempt, or one that moves to another process,
gets the same turns. A scripted sampler looks at the ids it is shown only where it is to sum up (`recap`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from composer_core.columns import Column
from composer_core.errors import ConfigError
from composer_core.protocols import BuildContext, Renderer
from composer_core.types import (
    Call,
    Completion,
    GenerateRequest,
    GenerateSettings,
    ParsedTurn,
    WeightsRef,
)
from composer_plugin_drills.tasks import DrillSet
from composer_plugin_drills.workspace import COMMAND


def turn(name: str, **arguments: str | int) -> ParsedTurn:
    """A turn of one call and no words."""
    return ParsedTurn(text="", calls=(Call(id="0", name=name, arguments=arguments),))


def read(path: str) -> ParsedTurn:
    return turn("read_file", path=path)


def check() -> ParsedTurn:
    return turn("run_terminal", command=COMMAND)


def finish() -> ParsedTurn:
    return turn("finish")


def edit(path: str, text: str, line: int, new: str) -> ParsedTurn:
    """Exchange one line (from 1) of `text`: the stripped line, or with lines around it until the match is unique."""
    lines = text.split("\n")
    old = lines[line - 1]
    if text.count(old.strip()) == 1:
        return turn("edit_file", path=path, old=old.strip(), new=new.strip())
    fresh = [*lines[: line - 1], new, *lines[line:]]
    spans = [(first, line) for first in reversed(range(line))]
    spans += [(0, stop) for stop in range(line + 1, len(lines) + 1)]
    for first, stop in spans:
        block = "\n".join(lines[first:stop])
        if text.count(block) == 1:
            return turn("edit_file", path=path, old=block, new="\n".join(fresh[first:stop]))
    raise ValueError(f"{path} has no line {line}")


class ScriptedSampler(ABC):
    """`protocols.Sampler` over scripts; log-probabilities are 0 and the version is 0."""

    def __init__(self, build: BuildContext) -> None:
        self._build = build
        self._tokens = 0

    @abstractmethod
    def script(self, request: GenerateRequest) -> list[ParsedTurn]:
        """The turns of the attempt that asks, in order."""

    async def prepare(self) -> None:
        """Awaited before every script: what it needs and takes long belongs here, off the event loop."""
        return

    @property
    def drills(self) -> DrillSet:
        """The run's task set.

        Raises:
            ConfigError: the run uses other tasks.
        """
        tasks = self._build.get("tasks")
        if not isinstance(tasks, DrillSet):
            raise ConfigError(
                f"{type(self).__name__} can only act out drills",
                who="composer-plugin-drills",
                where="tasks.use",
                expected="drills/drills",
                found=type(tasks).__name__,
            )
        return tasks

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        await self.prepare()
        return self._complete(self.due(self.script(request), ids, request.position), settings)

    def due(self, script: Sequence[ParsedTurn], ids: Sequence[int], position: int) -> Sequence[int]:
        """What is to be said next, where `position` tokens of the script were sampled."""
        renderer: Renderer = self._build.get("renderers")
        for step in script:
            rendered = renderer.render(step)
            if position < len(rendered):
                return rendered[position:]
            position -= len(rendered)
        return renderer.render(finish())

    def _complete(self, ids: Sequence[int], settings: GenerateSettings) -> Completion:
        given = list(ids[: settings.max_tokens])
        self._tokens += len(given)
        return Completion(
            ids=Column.of("I32", given),
            logprobs=Column.of("F32", [0.0] * len(given)),
            versions=((0, len(given)),),
            stop="stop" if len(given) == len(ids) else "length",
        )

    async def load(self, weights: WeightsRef, path: Path) -> None:
        """A script has no weights."""
        return

    async def release(self, session: str) -> None:
        """A script has no cache."""
        return

    def stats(self) -> Mapping[str, float]:
        return {"tokens": float(self._tokens)}

    async def close(self) -> None:
        """Nothing is held."""
        return
