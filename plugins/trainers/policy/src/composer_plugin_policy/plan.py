"""What a step trains: rows with their advantages, the objective, and the one constant the loss is divided by.

The order is score -> credit -> objective -> optimizer (RL.md section 1). Scoring before credit happens only when the
reward has a KL term: with one update for each batch, the recomputation `old` that objectives read is the detached
log-probability of the very forward pass that is trained, so a second pass would give the same numbers.

A row whose advantage is 0 is not forwarded: its loss and gradient are 0, unless the objective reads the reference. Its
episode still counts in E.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import Factory, evolve, frozen

from composer_core.credit import EpisodeKL, episode_advantages, flat_share, segment_advantages, segments_of
from composer_core.errors import TrainerError
from composer_core.protocols import Algorithm
from composer_core.types import TrainBatch
from composer_plugin_policy.batching import Row, make_rows
from composer_plugin_policy.config import StageSettings
from composer_plugin_policy.feedback import Lesson
from composer_plugin_policy.objectives import nll

PROBE_ROWS = 8
"""Rows whose parity is measured where none that is trained may be compared."""


@frozen(eq=False)
class Plan:
    """One step's work, the same on every rank."""

    rows: tuple[Row, ...]
    """Rows to forward, in the order of the batch."""
    objective: Callable[[Any, Any], Any]
    divisor: float
    """E x L0 for rl, the trained tokens of the batch for nll."""
    algorithm: Algorithm | None = None
    """None for nll."""
    facts: Mapping[str, float] = Factory(dict)
    """Metrics that are known before the first pass."""
    probe: tuple[Row, ...] = ()
    """Rows that are only compared with the sampler: those of flat groups, since a policy that solves nothing may be one
    that is sampled wrongly, and those that came with the batch for want of any."""
    lessons: tuple[Lesson, ...] = ()
    """Turns that rewards have said something of, where the stage makes use of it."""

    @property
    def trains(self) -> bool:
        """Whether anything of it gives a gradient."""
        return bool(self.rows or self.lessons)

    @property
    def needs(self) -> frozenset[str]:
        return self.algorithm.needs if self.algorithm else frozenset()


def plan_prediction(batch: TrainBatch) -> Plan:
    """pretrain and sft: the mean over all trained tokens of the batch."""
    rows = tuple(make_rows(batch.sequences))
    return Plan(rows, nll, divisor=float(max(1, sum(len(row.positions_N) for row in rows))))


def plan_policy(
    batch: TrainBatch,
    settings: StageSettings,
    algorithm: Algorithm,
    score_kl: Callable[[list[Row], int], Mapping[int, EpisodeKL]],
) -> Plan:
    """rl: rows carry the advantage of their segment. `score_kl` is called only when the reward has a KL term.

    Raises:
        TrainerError: the batch's algorithm is not the run's, or its counts contradict each other.
    """
    _check(batch, algorithm)
    rows = make_rows(batch.sequences)
    kl = score_kl(rows, batch.episodes) if settings.beta else {}
    advantages = episode_advantages(batch.groups, algorithm, settings.rule(), kl)
    spread = segment_advantages(advantages, segments_of(batch.sequences), settings.credit)
    credited = [evolve(row, advantage=spread[row.sequence.episode, row.sequence.segment]) for row in rows]
    facts = {"flat_share": flat_share(batch.groups, advantages)}
    if batch.probe:
        facts["parity_probe_rows"] = float(len(batch.probe))
    if kl:
        facts["kl_per_token"] = sum(e.total for e in kl.values()) / max(1, sum(e.tokens for e in kl.values()))
    trained = tuple(row for row in credited if row.advantage != 0 or "ref" in algorithm.needs)
    compared = [] if any(map(_comparable, trained)) else [*credited, *make_rows(batch.probe)]
    return Plan(
        rows=trained,
        objective=algorithm.objective,
        divisor=batch.episodes * settings.loss_scale_tokens,
        algorithm=algorithm,
        facts=facts,
        probe=tuple(filter(_comparable, compared))[:PROBE_ROWS],
    )


def _comparable(row: Row) -> bool:
    """Whether anything of a row may be compared with its sampler."""
    return row.sequence.comparable is not None and any(row.sequence.comparable.data)


def _check(batch: TrainBatch, algorithm: Algorithm) -> None:
    if algorithm.id != batch.objective:
        raise TrainerError("a batch asks for another algorithm", expected=algorithm.id, found=batch.objective)
    highest = max((sequence.episode for sequence in batch.sequences), default=-1)
    if batch.episodes <= highest or batch.episodes < 1:
        raise TrainerError(
            "a batch holds more episodes than it says",
            where="TrainBatch.episodes",
            expected=f"at least {max(1, highest + 1)}",
            found=str(batch.episodes),
        )
