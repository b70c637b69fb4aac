"""What a worker has in place of samplers that live in replicas, and its lines to these.

Which replica an episode uses was decided by the controller and came with the order to run it; it is kept in a context
variable, which every task of the episode inherits. When the replica vanishes the episode is lost: its cache is gone,
and an attempt that is made again draws the same noise from its first token on, or plays its tape first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from composer_core import Column
from composer_core.errors import SamplerError, WorkLost
from composer_core.types import Completion, GenerateRequest, GenerateSettings, WeightsRef
from composer_plugin_ray.line import Line, Numbered, newer
from composer_plugin_ray.tape import TAPE

if TYPE_CHECKING:  # this module knows no Ray
    from composer_plugin_ray.remote import Remote

REPLICA: ContextVar[str] = ContextVar("replica")
"""Name of the replica that the running episode uses."""


class Replicas:
    """The lines of one worker."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._lines: dict[str, Line] = {}
        self._notes: dict[str, Numbered] = {}

    async def use(self, replicas: Mapping[str, Remote]) -> None:
        """These are there now; the lines to others are closed."""
        for name in self._lines.keys() - replicas.keys():
            await self._lines.pop(name).close()
        for name in replicas.keys() - self._lines.keys():
            self._lines[name] = self._open(name, replicas[name])

    def _open(self, name: str, replica: Remote) -> Line:
        def note(latest: Numbered) -> None:
            self._notes[name] = newer(self._notes.get(name), latest)

        return Line(self._client, replica.exchange, note)

    def line(self) -> Line:
        """To the replica of the running episode.

        Raises:
            WorkLost: it is gone.
        """
        name = REPLICA.get()
        if name not in self._lines:
            raise WorkLost(f"the process of {name} is gone")
        return self._lines[name]

    def notes(self) -> Mapping[str, Numbered]:
        """Each replica's counters, as of its last answer."""
        return dict(self._notes)

    async def close(self) -> None:
        await self.use({})


class RemoteSampler:
    """`protocols.Sampler` whose generations are a replica's."""

    def __init__(self, name: str, replicas: Replicas) -> None:
        self._name, self._replicas = name, replicas

    async def generate(self, ids: Sequence[int], settings: GenerateSettings, request: GenerateRequest) -> Completion:
        tape = TAPE.get()
        if tape and (played := await tape.play(ids)):
            return played
        line = self._replicas.line()
        found: Completion = await line.call("generate", self._name, Column.of("I32", ids), settings, request)
        if tape:
            await tape.keep(ids, found)
        return found

    async def load(self, weights: WeightsRef, path: Path) -> None:
        raise SamplerError("weights are published to replicas, not to workers", who="ray/ray")

    async def release(self, session: str) -> None:
        with contextlib.suppress(WorkLost):  # then nothing is kept there
            self._replicas.line().post("release", self._name, session)

    def stats(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        """The lines are the worker's."""
