"""What every reward must do (`records.RewardSpec`). Subclass `RewardContract`; override `build` and `situations`."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import frozen

from composer_core.records import RewardSpec, resolve
from composer_core.scoring import Reward
from composer_core.types import Score


@frozen
class Situation:
    """Arguments that a run could inject, and what the reward makes of them."""

    arguments: Mapping[str, Any]
    """By parameter name; for scope "group", `group` holds the traces. `fakes.rooms.rooms_of` makes a `grading`."""
    value: float | None = None
    """The expected value; None if only its range matters."""


class RewardContract:
    """Name your subclass `Test...`."""

    def build(self) -> RewardSpec:
        raise NotImplementedError("return the reward's record")

    def situations(self) -> Mapping[str, Situation]:
        raise NotImplementedError(
            "return situations by name; for an outcome reward at least one of value 1 and one of 0"
        )

    @pytest.fixture
    def spec(self) -> RewardSpec:
        return self.build()

    def score(self, spec: RewardSpec, situation: Situation) -> list[Score]:
        """Call the function as a run would; one score for an episode, one for each member of a group."""
        function = resolve(spec.function)
        given = {name: situation.arguments[name] for name in inspect.signature(function).parameters}
        found = function(**given)
        found = asyncio.run(found) if inspect.iscoroutine(found) else found
        values = found if spec.scope == "group" else [found]
        return [one if isinstance(one, Score) else Score(spec.name, "", float(one)) for one in values]

    def test_parameters_can_be_injected(self, spec: RewardSpec) -> None:
        reward = Reward("under/test", "0", spec, resolve(spec.function), None, weight=1.0)
        assert reward.wants == set(inspect.signature(reward.function).parameters)

    def test_range_is_finite_and_ordered(self, spec: RewardSpec) -> None:
        low, high = spec.range
        assert math.isfinite(low) and math.isfinite(high) and low < high
        assert spec.scope in ("episode", "group")

    def test_values_are_as_expected_and_in_range(self, spec: RewardSpec) -> None:
        for name, situation in self.situations().items():
            for score in self.score(spec, situation):
                assert spec.range[0] <= score.value <= spec.range[1], name
                assert situation.value is None or score.value == pytest.approx(situation.value), name
                assert all(math.isfinite(part) for part in score.parts.values()), name

    def test_equal_situations_get_equal_scores(self, spec: RewardSpec) -> None:
        for name, situation in self.situations().items():
            assert self.score(spec, situation) == self.score(spec, situation), name

    def test_a_group_gets_one_score_each(self, spec: RewardSpec) -> None:
        if spec.scope == "group":
            for situation in self.situations().values():
                assert len(self.score(spec, situation)) == len(situation.arguments["group"])

    def test_an_outcome_tells_solved_from_failed(self, spec: RewardSpec) -> None:
        if spec.outcome:
            assert {0.0, 1.0} <= {situation.value for situation in self.situations().values()}
            assert spec.range == (0.0, 1.0)
