"""First turns that are sampled to be compared with the trainer, where a step has nothing else that may be.

A step's own tokens show whether sampler and trainer compute one policy, if some of them carry the version that the
trainer stands at (RL.md section 4). With staleness there may be none for hours, and weights that reached a sampler
wrong would be trained on unseen. So the version published last begins a few fixed tasks, and what it samples goes
along with the batch: the trainer, which has not changed those weights yet, scores it beside its own rows and reports
and judges it as ever. Where one batch lacked such tokens the next is expected to, and its probe is sampled from the
publication on, while the batch comes together; it takes places of episodes for no longer than a short turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from attrs import define, evolve

from composer_core.batches import sequences_of
from composer_core.evaluate import cancel_all, gather_all
from composer_core.events import PARITY_PROBE
from composer_core.ledger import Issue
from composer_core.traces import decode
from composer_core.types import EpisodeRequest, Outcome, SlotKey, Task, TrainBatch, TrainSequence

if TYPE_CHECKING:
    from composer_core.rollouts import RlParts

EPISODES = 4
TOKENS = 64
"""Of each; a turn that was cut makes no call, so tools have nothing to do."""


@define
class Probe:
    """Of one stage."""

    parts: RlParts
    _rows: asyncio.Task[tuple[TrainSequence, ...]] | None = None
    """Of the version published last; None where the batch before it needed none."""

    async def beside(self, batch: TrainBatch, version: int) -> TrainBatch:
        """`batch`, with rows of `version` if none of its own may be compared."""
        if self.parts.attempt is None or any(any(row.comparable.data) for row in batch.sequences if row.comparable):
            await self.close()
            return batch
        self._rows = self._rows or asyncio.create_task(self._sampled(version))
        return evolve(batch, probe=await self._rows)

    def published(self, version: int) -> None:
        """The weights are others now; to be called once for each batch."""
        if self._rows:
            self._rows = asyncio.create_task(self._sampled(version))

    async def close(self) -> None:
        """Safe twice."""
        rows, self._rows = self._rows, None
        await cancel_all([rows] if rows else [])

    async def _sampled(self, version: int) -> tuple[TrainSequence, ...]:
        asked = [self._request(task, version) for task in self.parts.tasks[:EPISODES]]
        assert self.parts.attempt
        results = await gather_all([self.parts.attempt(request, PARITY_PROBE) for request in asked])
        found = [result.trace.uri for result in results if result.trace and result.verdict.outcome is not Outcome.VOID]
        traces = [decode(self.parts.store.get(uri)) for uri in found]
        return tuple(row for trace in traces for row in sequences_of(trace, 0, self.parts.stage.temperature, version))

    def _request(self, task: Task, version: int) -> EpisodeRequest:
        """The same noise for every version, and a group of its own, so that every replica has its turn."""
        request = self.parts.request(Issue(version, 0, task.id, 0), task)
        return evolve(
            request,
            key=SlotKey(task.id, 0, "parity", f"{self.parts.stage.name}-{version}"),
            group=f"parity:{version}:{task.id}",
            task=evolve(request.task, limits=evolve(request.task.limits, turns=1, tokens=TOKENS)),
            graded=False,
        )
