"""What a run tells its trackers: one frozen record per thing that happened.

Events are facts about the past. Trackers may write them down; nothing in the loop waits for or reads them back, so a
slow or broken tracker costs a fault and never a step. Times are seconds since the Unix epoch, from the run's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Factory, frozen

from composer_core.types import EpisodeResult, Fault, Score, WeightsRef

__all__ = [
    "CheckpointSaved",
    "ContextCompacted",
    "EpisodeCancelled",
    "EpisodeEnded",
    "EpisodeStarted",
    "Evaluated",
    "Event",
    "FaultRecorded",
    "GroupScored",
    "PluginFailed",
    "RunEnded",
    "RunStarted",
    "StageEnded",
    "StageStarted",
    "StepEnded",
    "TurnEnded",
    "WeightsPublished",
]

PARITY_PROBE = "parity/probe"
"""The purpose of episodes that are sampled to compare sampler and trainer (`probing`)."""


@frozen(kw_only=True)
class Event:
    """Base of all events; abstract, never emitted itself."""

    time_s: float = 0.0


@frozen(kw_only=True)
class RunStarted(Event):
    """The run folder is written; nothing has been trained yet (or a resumed run is about to carry on)."""

    name: str
    run_dir: str
    resumed_from: str | None = None
    plugins: tuple[str, ...] = ()


@frozen(kw_only=True)
class StageStarted(Event):
    """A stage of the run begins. `steps` is its length in steps, when it is known beforehand."""

    stage: str
    kind: str
    steps: int | None = None


@frozen(kw_only=True)
class StageEnded(Event):
    stage: str
    summary: Mapping[str, Any] = Factory(dict)


@frozen(kw_only=True)
class EpisodeStarted(Event):
    episode_id: str
    task_id: str
    group: str


@frozen(kw_only=True)
class TurnEnded(Event):
    """One turn of one episode: counts and times only; the words are on the trace."""

    episode_id: str
    turn: int
    sampled_tokens: int
    calls: tuple[str, ...] = ()
    generate_s: float = 0.0
    tools_s: float = 0.0


@frozen(kw_only=True)
class EpisodeEnded(Event):
    result: EpisodeResult
    purpose: str = "rl"
    """What it was for: the name of a stage or of an evaluation, or `PARITY_PROBE`."""


@frozen(kw_only=True)
class EpisodeCancelled(Event):
    """Nobody waits for its result any more, so it has no `EpisodeEnded`; it may not have started yet."""

    episode_id: str


@frozen(kw_only=True)
class GroupScored(Event):
    """All slots of a group have ended: rewards of its valid members, and whether it is trained."""

    group: str
    task_id: str
    rewards: tuple[float, ...]
    episodes: tuple[str, ...] = ()
    """Ids of the valid members, in the order of the rewards."""
    group_scores: tuple[tuple[Score, ...], ...] = ()
    """Of each valid member, what rewards of scope "group" gave it; its trace holds the others."""
    voids: int = 0


@frozen(kw_only=True)
class ContextCompacted(Event):
    episode_id: str
    branch: int
    tokens_before: int
    tokens_after: int


@frozen(kw_only=True)
class StepEnded(Event):
    """One optimizer step was applied (or skipped: see the metric `skipped`)."""

    stage: str
    step: int
    steps: int | None
    version: int
    """Of the weights that it began from; in pretrain and sft, whose steps have no versions, of the last commit."""
    metrics: Mapping[str, float]


@frozen(kw_only=True)
class Evaluated(Event):
    """An evaluation ended; `name` says of what and how sampled, such as "new_bug T=1"."""

    name: str
    step: int
    metrics: Mapping[str, float]


@frozen(kw_only=True)
class WeightsPublished(Event):
    weights: WeightsRef


@frozen(kw_only=True)
class CheckpointSaved(Event):
    path: str
    stage: str
    step: int
    version: int
    """Of the weights that belong to this checkpoint."""


@frozen(kw_only=True)
class FaultRecorded(Event):
    fault: Fault
    episode_id: str | None = None


@frozen(kw_only=True)
class PluginFailed(Event):
    plugin: str
    dist: str
    version: str
    error: str


@frozen(kw_only=True)
class RunEnded(Event):
    """`status` is finished, interrupted or failed; `summary` is what summary.json holds."""

    status: str
    summary: Mapping[str, Any] = Factory(dict)
