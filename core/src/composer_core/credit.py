"""From the rewards of groups to one advantage for each (episode, segment).

An algorithm sees the rewards of one group's valid members and nothing else. What happens before (the KL term of the
reward) and after (how an episode's advantage is spread over the branches of its chain) is the same for all of them,
so it stands here once, in plain Python: every trainer shares it and a test can follow each number by hand. A chain of
summaries is one episode and counts once in its group's mean, however many segments it has. Source: RL.md section 1.

No torch, and no loss: tokens are the trainer's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from composer_core.errors import TrainerError, boundary
from composer_core.protocols import Algorithm
from composer_core.types import GroupRewards, TrainSequence

__all__ = [
    "CREDIT_MODES",
    "KL_MODES",
    "CreditRule",
    "EpisodeKL",
    "SegmentAdvantages",
    "episode_advantages",
    "flat_share",
    "penalized",
    "segment_advantages",
    "segments_of",
]

CREDIT_MODES = ("share", "split", "last")
KL_MODES = ("k1", "k1_mean")

SegmentAdvantages = Mapping[tuple[int, int], float]
"""(episode, segment) -> the advantage of every trained token in it."""


@frozen
class EpisodeKL:
    """How far one episode's trained tokens are from the reference, over all segments of its chain."""

    total: float
    """Sum of old_logp - ref_logp over the trained tokens (the k1 estimate, in nats)."""
    tokens: int
    """Trained tokens."""


@frozen
class CreditRule:
    """How rewards become advantages, apart from the algorithm."""

    mode: str = "share"
    """share: A on every trained token of the chain; split: A / number of segments; last: the last segment only."""
    beta: float = 0.0
    """Weight of the KL term that is taken off the reward before centering; 0 is off."""
    kl: str = "k1"
    """k1: the sum over trained tokens (also a length penalty); k1_mean: the mean per trained token."""


def segments_of(sequences: Iterable[TrainSequence]) -> dict[int, tuple[int, ...]]:
    """The segments of each episode that train at least one token, in order; others take no credit."""
    found: dict[int, set[int]] = {}
    for sequence in sequences:
        if any(sequence.trained.data):
            found.setdefault(sequence.episode, set()).add(sequence.segment)
    return {episode: tuple(sorted(segments)) for episode, segments in found.items()}


def penalized(group: GroupRewards, rule: CreditRule, kl: Mapping[int, EpisodeKL]) -> tuple[float, ...]:
    """r' = r - beta x KL for each member; an episode without trained tokens has no KL."""
    if rule.beta == 0:
        return group.rewards
    none = EpisodeKL(0.0, 0)
    terms = (_kl_term(kl.get(episode, none), rule.kl) for episode in group.episodes)
    return tuple(reward - rule.beta * term for reward, term in zip(group.rewards, terms, strict=True))


def _kl_term(kl: EpisodeKL, mode: str) -> float:
    return kl.total / max(1, kl.tokens) if mode == "k1_mean" else kl.total


def episode_advantages(
    groups: Sequence[GroupRewards], algorithm: Algorithm, rule: CreditRule, kl: Mapping[int, EpisodeKL] | None = None
) -> dict[int, float]:
    """One advantage for each episode of `groups`.

    Raises:
        TrainerError: an episode is in two groups, or the algorithm returned something other than one finite number
            for each member.
        PluginFault: the algorithm raised.
    """
    found: dict[int, float] = {}
    for group in groups:
        values = _group_advantages(group, algorithm, penalized(group, rule, kl or {}))
        for episode, value in zip(group.episodes, values, strict=True):
            if episode in found:
                raise TrainerError(f"episode {episode} of the batch is in two groups", where=f"group {group.group}")
            found[episode] = value
    return found


def _group_advantages(group: GroupRewards, algorithm: Algorithm, rewards: Sequence[float]) -> list[float]:
    with boundary("algorithms", algorithm.id):
        values = [float(value) for value in algorithm.advantage(rewards, algorithm.config)]
    if len(values) != len(rewards) or not all(math.isfinite(value) for value in values):
        raise TrainerError(
            f"algorithm {algorithm.id} gave no usable advantages",
            where=f"group {group.group}, rewards {tuple(rewards)}",
            expected=f"{len(rewards)} finite numbers",
            found=repr(values),
        )
    return values


def segment_advantages(
    advantages: Mapping[int, float], segments: Mapping[int, Sequence[int]], mode: str
) -> SegmentAdvantages:
    """Spread each episode's advantage over its segments.

    Raises:
        TrainerError: a sequence belongs to an episode that no group holds.
    """
    missing = sorted(set(segments) - set(advantages))
    if missing:
        raise TrainerError("sequences of episodes that are in no group", found=str(missing))
    return {
        (episode, segment): _share(advantages[episode], position, len(chain), mode)
        for episode, chain in segments.items()
        for position, segment in enumerate(chain)
    }


def _share(advantage: float, position: int, count: int, mode: str) -> float:
    if mode == "share":
        return advantage
    if mode == "split":
        return advantage / count
    return advantage if position == count - 1 else 0.0


def flat_share(groups: Sequence[GroupRewards], advantages: Mapping[int, float]) -> float:
    """Share of the groups in which every advantage is 0, which teach nothing."""
    flat = sum(all(advantages[episode] == 0 for episode in group.episodes) for group in groups)
    return flat / max(1, len(groups))
