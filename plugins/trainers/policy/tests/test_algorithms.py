"""Advantages by hand, and the public contract of each algorithm."""

from __future__ import annotations

import math

import pytest

from composer_core.records import AlgorithmSpec
from composer_plugin_policy import plugin
from composer_plugin_policy.algorithms import dr_grpo, grpo, rloo
from composer_plugin_policy.config import GrpoConfig, PolicyGradientConfig
from composer_testing.contracts.algorithms import AlgorithmContract

PLAIN = PolicyGradientConfig()


def _record(name: str) -> AlgorithmSpec:
    return next(spec for spec in plugin.composer_algorithms() if spec.name == name)


class TestDrGrpo(AlgorithmContract):
    def record(self) -> AlgorithmSpec:
        return _record("dr_grpo")


class TestGrpo(AlgorithmContract):
    def record(self) -> AlgorithmSpec:
        return _record("grpo")


class TestRloo(AlgorithmContract):
    def record(self) -> AlgorithmSpec:
        return _record("rloo")


class TestPpoClip(AlgorithmContract):
    def record(self) -> AlgorithmSpec:
        return _record("ppo_clip")


class TestDapo(AlgorithmContract):
    def record(self) -> AlgorithmSpec:
        return _record("dapo")


class TestGspo(AlgorithmContract):
    def record(self) -> AlgorithmSpec:
        return _record("gspo")


class TestCispo(AlgorithmContract):
    def record(self) -> AlgorithmSpec:
        return _record("cispo")


def test_dr_grpo_is_reward_minus_mean_without_division_by_the_deviation():
    assert dr_grpo((1.0, 0.0, 0.0, 0.0), PLAIN) == [0.75, -0.25, -0.25, -0.25]
    assert dr_grpo((2.0, 0.0, 0.0, 0.0), PLAIN) == [1.5, -0.5, -0.5, -0.5]


def test_grpo_divides_by_the_deviation_of_the_group():
    deviation = math.sqrt((0.75**2 + 3 * 0.25**2) / 4)
    assert grpo((1.0, 0.0, 0.0, 0.0), GrpoConfig(epsilon=1e-12)) == pytest.approx(
        [0.75 / deviation, *[-0.25 / deviation] * 3]
    )
    assert grpo((2.0, 0.0), GrpoConfig()) == pytest.approx(grpo((1.0, 0.0), GrpoConfig()), abs=1e-5)


def test_rloo_is_reward_minus_the_mean_of_the_others():
    assert rloo((1.0, 0.0, 0.5), PLAIN) == pytest.approx([1.0 - 0.25, 0.0 - 0.75, 0.5 - 0.5])


@pytest.mark.parametrize("rewards", [(1.0, 0.0), (0.3, 0.7, 0.1, 0.9), (1.0, 0.0, 0.0, 0.0, 0.0)])
def test_rloo_is_dr_grpo_times_n_over_n_minus_one(rewards):
    n = len(rewards)
    assert rloo(rewards, PLAIN) == pytest.approx([value * n / (n - 1) for value in dr_grpo(rewards, PLAIN)])


def test_rounding_never_turns_a_flat_group_into_a_gradient():
    assert dr_grpo((0.1,) * 3, PLAIN) == [0.0] * 3
    assert rloo((0.7,), PLAIN) == [0.0]


@pytest.mark.parametrize("name", ["dapo", "gspo", "cispo"])
def test_papers_that_build_on_grpo_have_its_advantage(name):
    spec, rewards = _record(name), (1.0, 0.0, 0.0, 0.0)
    assert spec.advantage(rewards, spec.config()) == grpo(rewards, GrpoConfig())


def test_ppo_without_a_value_network_is_centered_and_not_divided():
    spec = _record("ppo_clip")
    assert spec.advantage((2.0, 0.0), spec.config()) == [1.0, -1.0]
