"""What every algorithm must do (`records.AlgorithmSpec`). Subclass `AlgorithmContract` and override `record`.

The advantage is tested without torch; the objective's tests import it when they run. Legend: T tokens.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from composer_core.records import AlgorithmSpec, resolve

GROUPS = ((1.0, 0.0), (0.0, 0.0, 1.0, 1.0, 0.25), (0.1, 0.7, 0.4), (-1.0, 1e6))
FLAT = ((0.1, 0.1, 0.1), (0.0, 0.0), (1.0,) * 7)


class AlgorithmContract:
    """Name your subclass `Test...`."""

    centered = True
    """Whether the advantages of a group sum to 0; set False for an algorithm without a baseline."""

    def record(self) -> AlgorithmSpec:
        raise NotImplementedError("return the record that your hook yields")

    def config(self) -> Any:
        """Settings to test under; the defaults unless overridden."""
        return self.record().config()

    def advantage(self, rewards: tuple[float, ...]) -> list[float]:
        return list(resolve(self.record().advantage)(rewards, self.config()))

    @pytest.mark.parametrize("rewards", GROUPS + FLAT)
    def test_one_finite_number_for_each_member(self, rewards: tuple[float, ...]) -> None:
        values = self.advantage(rewards)
        assert len(values) == len(rewards)
        assert all(math.isfinite(value) for value in values)

    @pytest.mark.parametrize("rewards", GROUPS)
    def test_a_centered_group_sums_to_zero(self, rewards: tuple[float, ...]) -> None:
        scale = max(abs(reward) for reward in rewards)
        assert not self.centered or abs(sum(self.advantage(rewards))) <= 1e-9 * scale

    @pytest.mark.parametrize("rewards", FLAT)
    def test_a_flat_group_gets_exact_zeros(self, rewards: tuple[float, ...]) -> None:
        assert not self.centered or self.advantage(rewards) == [0.0] * len(rewards)

    @pytest.mark.parametrize("rewards", GROUPS)
    def test_the_order_of_members_does_not_matter(self, rewards: tuple[float, ...]) -> None:
        assert self.advantage(rewards[::-1]) == pytest.approx(self.advantage(rewards)[::-1])

    @pytest.mark.parametrize("rewards", GROUPS)
    def test_a_better_reward_never_gets_a_smaller_advantage(self, rewards: tuple[float, ...]) -> None:
        by_reward = sorted(zip(rewards, self.advantage(rewards), strict=True))
        values = [value for _, value in by_reward]
        assert values == sorted(values)

    def test_the_objective_is_one_loss_a_token_differentiable_in_its_log_probability(self) -> None:
        inputs, loss_T = self._objective(advantages=(1.0, -0.5, 2.0))
        assert loss_T.shape == inputs.logp_T.shape
        loss_T.sum().backward()
        assert (inputs.logp_T.grad != 0).all()

    def test_the_objective_leaves_its_inputs_as_they_are(self) -> None:
        before = self._inputs(advantages=(1.0, -0.5, 2.0))
        inputs, _ = self._objective(advantages=(1.0, -0.5, 2.0))
        for name in ("logp_T", "advantage_T", "behavior_T", "old_T", "ref_T", "episode_T", "sequence_T"):
            assert getattr(inputs, name).equal(getattr(before, name)), name

    def test_the_objective_raises_what_has_a_positive_advantage(self) -> None:
        inputs, loss_T = self._objective(advantages=(1.0, -1.0, 0.5))
        loss_T.sum().backward()
        assert (inputs.logp_T.grad * inputs.advantage_T <= 0).all()

    def test_no_advantage_means_no_gradient_unless_the_reference_is_read(self) -> None:
        inputs, loss_T = self._objective(advantages=(0.0, 0.0, 0.0))
        loss_T.sum().backward()
        assert "ref" in self.record().needs or inputs.logp_T.grad.abs().max() == 0

    @pytest.mark.parametrize("shift", [-200.0, 200.0])
    def test_a_sampler_far_off_leaves_loss_and_gradient_finite(self, shift: float) -> None:
        inputs, loss_T = self._objective(advantages=(1.0, -0.5, 2.0), shift=shift)
        loss_T.sum().backward()
        assert loss_T.isfinite().all()
        assert inputs.logp_T.grad.isfinite().all()

    def _objective(self, advantages: tuple[float, ...], shift: float = 0.0) -> tuple[Any, Any]:
        inputs = self._inputs(advantages, shift)
        return inputs, resolve(self.record().objective)(inputs, self.config())

    def _inputs(self, advantages: tuple[float, ...], shift: float = 0.0) -> Any:
        """What a trainer hands over: only `logp_T` carries a gradient; the sampler is off by about `shift` nats."""
        import torch

        from composer_core.tensors import ObjectiveInputs

        return ObjectiveInputs(
            logp_T=torch.tensor([-1.0, -2.0, -0.1], requires_grad=True),
            advantage_T=torch.tensor(advantages),
            behavior_T=torch.tensor([-1.1, -1.9, -0.1]) + shift,
            old_T=torch.tensor([-1.0, -2.0, -0.1]),
            ref_T=torch.tensor([-1.0, -2.5, -0.3]),
            episode_T=torch.tensor([0, 0, 1]),
            sequence_T=torch.tensor([0, 0, 1]),
        )
