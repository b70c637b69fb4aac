"""From an ended episode to a verdict and a reward.

A reward is a typed function whose parameters are injected by name. Each value is clipped to the range its record
declares (clips are counted) and multiplied by the run's weight; the outcome reward alone decides the verdict. A grader
that fails makes the episode void; it never counts as the policy's failure.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean, pvariance
from typing import Any

from attrs import evolve, field, frozen

from composer_core.errors import ConfigError, GradingError, boundary
from composer_core.records import RewardSpec
from composer_core.trees import Patch
from composer_core.types import Outcome, Score, Trace, Verdict

KEPT_SCORES = 4096
"""Latest scores of a pure reward that are remembered; members of a group end close together."""
OF_SCOPE = {
    "episode": frozenset({"trace", "task", "patch", "grading", "config"}),
    "group": frozenset({"group", "task", "config"}),
}
"""What a reward of each scope can be given: a group as a whole has no patch, and an episode no group."""


@frozen
class Reward:
    """A chosen reward: record, resolved function, settings, weight and provenance."""

    id: str
    version: str
    spec: RewardSpec
    function: Callable[..., Any]
    config: Any
    weight: float
    _known: dict[tuple[str, Patch], asyncio.Task[Score]] = field(factory=dict, eq=False, repr=False)
    """Scores of a pure reward by (task id, patch), running ones included."""

    @property
    def wants(self) -> frozenset[str]:
        """Names of the parameters to inject.

        Raises:
            ConfigError: the function asks for something that does not exist in its scope.
        """
        names = frozenset(inspect.signature(self.function).parameters)
        allowed = OF_SCOPE[self.spec.scope] - ({"trace"} if self.spec.pure else set())
        if outside := names - allowed:
            raise ConfigError(
                f"reward {self.id} has scope {self.spec.scope!r}{', is pure' * self.spec.pure} and asks for "
                + ", ".join(sorted(outside)),
                expected=f"parameters among {', '.join(sorted(allowed))}",
                fix='declare scope="group" on its record' if "group" in outside else "leave the parameter out",
            )
        return names

    async def score(self, available: Mapping[str, Any]) -> Score:
        """The score of one episode; a pure reward scores each (task, patch) once, failures excepted.

        Members of a group often end with equal patches, so this saves most of their gradings.
        """
        if not self.spec.pure:
            return await self._score(available)
        key = (available["task"].id, available["patch"])
        found = self._known.get(key)
        if found is None or (found.done() and (found.cancelled() or found.exception())):
            found = self._known[key] = asyncio.ensure_future(self._score(available))
            # Whoever waits hears it; when an interrupted run has left nobody, a failure is one of closed sandboxes.
            found.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            if len(self._known) > KEPT_SCORES:
                self._known.pop(next(iter(self._known)))
        return await asyncio.shield(found)

    async def _score(self, available: Mapping[str, Any]) -> Score:
        """Call the function with what it names; a number or bool becomes a Score.

        Raises:
            GradingError, SandboxError, PluginFault: the grader failed; the episode is void.
        """
        with boundary("rewards", self.id):
            given = {name: self.config if name == "config" else available[name] for name in self.wants}
            value = await _call(self.function, given)
            if isinstance(value, Sequence):
                raise TypeError(f"an episode-scope reward returned a sequence: {value!r}")
            return self.clipped(value)

    async def score_group(self, traces: Sequence[Trace], available: Mapping[str, Any]) -> list[Score]:
        """One score for each member of a group."""
        with boundary("rewards", self.id):
            given = {name: self.config if name == "config" else available[name] for name in self.wants - {"group"}}
            if "group" in self.wants:
                given["group"] = tuple(traces)
            values = await _call(self.function, given)
            if len(values) != len(traces):
                raise ValueError(f"{len(values)} scores for a group of {len(traces)}")
            return [self.clipped(value) for value in values]

    def clipped(self, value: Score | float | bool) -> Score:
        score = value if isinstance(value, Score) else Score(self.id, self.version, float(value))
        if not math.isfinite(score.value):
            raise GradingError(f"reward {self.id} is not finite", found=repr(score.value))
        low, high = self.spec.range
        bounded = min(max(score.value, low), high)
        parts = dict(score.parts)
        if bounded != score.value:
            parts["clipped_from"] = score.value
        return evolve(score, reward=self.id, version=self.version, value=bounded, parts=parts, weight=self.weight)


async def _call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**given)
    found = await asyncio.to_thread(function, **given)
    return await found if isinstance(found, Awaitable) else found


def total(scores: Sequence[Score]) -> float:
    """The composed reward: sum of weight x clipped value."""
    return sum(score.weight * score.value for score in scores)


def spread(groups: Sequence[Sequence[Trace]]) -> dict[str, float]:
    """Of each reward's part of the whole, weight x value: its mean, and its deviation within groups.

    The second is what it teaches: a part that is equal for all members of a group moves nothing. A run with one reward
    has no parts.
    """
    found: dict[str, float] = {}
    ids = dict.fromkeys(score.reward for row in groups for trace in row for score in trace.scores)
    for id in ids if len(ids) > 1 else ():
        rows = [[total([s for s in trace.scores if s.reward == id]) for trace in row] for row in groups]
        found[f"reward/{id}"] = fmean(value for row in rows for value in row)
        found[f"reward_std/{id}"] = math.sqrt(fmean(map(pvariance, filter(None, rows))))
    return found


def verdict_of(rewards: Sequence[Reward], scores: Sequence[Score]) -> Verdict:
    """Solved if the outcome reward reached 1, failed if not, ungraded without an outcome reward."""
    outcome = {reward.id for reward in rewards if reward.spec.outcome}
    for score in scores:
        if score.reward in outcome:
            return Verdict(Outcome.SOLVED if score.value >= 1.0 else Outcome.FAILED)
    return Verdict(Outcome.UNGRADED)


def lead_of_outcome(rewards: Sequence[Reward]) -> dict[str, float]:
    """`gap`: what the outcome alone decides; `swing`: how far the auxiliaries together move; `margin`: the difference.

    The gap is the outcome's weight (solved 1, failed 0); each auxiliary can move |weight| x (high - low).
    """
    gap = sum(reward.weight for reward in rewards if reward.spec.outcome)
    swing = sum(abs(r.weight) * (r.spec.range[1] - r.spec.range[0]) for r in rewards if not r.spec.outcome)
    return {"gap": gap, "swing": swing, "margin": gap - swing}


def excess_of_auxiliaries(rewards: Sequence[Reward]) -> float:
    """How far the auxiliaries together could outweigh the outcome; below 0 is what `check` proves."""
    return -lead_of_outcome(rewards)["margin"]
