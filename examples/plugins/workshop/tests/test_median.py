"""The algorithm keeps its kind's contract, and computes what its docstrings define."""

import math

import pytest
import torch

from composer_core import AlgorithmSpec
from composer_core.tensors import ObjectiveInputs
from composer_plugin_workshop.config import MedianConfig
from composer_plugin_workshop.loss import objective
from composer_plugin_workshop.median import advantage
from composer_plugin_workshop.plugin import composer_algorithms
from composer_testing.contracts.algorithms import FLAT, GROUPS, AlgorithmContract

PLAIN = MedianConfig()


class TestMedian(AlgorithmContract):
    centered = False

    def record(self) -> AlgorithmSpec:
        (spec,) = composer_algorithms()
        return spec


def test_advantages_by_hand():
    assert advantage((0.0, 1.0, 4.0), PLAIN) == pytest.approx([-1 / (4 / 3), 0.0, 3 / (4 / 3)], rel=1e-5)
    assert advantage((0.0, 0.0, 1.0, 1.0), PLAIN) == pytest.approx([-1, -1, 1, 1], rel=1e-5)


def test_where_most_fail_only_successes_teach():
    assert advantage((0.0, 0.0, 0.0, 1.0), PLAIN) == pytest.approx([0, 0, 0, 4], rel=1e-5)


@pytest.mark.parametrize("rewards", GROUPS)
def test_every_group_that_is_not_flat_pulls_alike(rewards):
    assert math.fsum(map(abs, advantage(rewards, PLAIN))) == pytest.approx(len(rewards), rel=1e-4)


@pytest.mark.parametrize("rewards", FLAT)
def test_a_flat_group_gets_exact_zeros(rewards):
    assert advantage(rewards, PLAIN) == [0.0] * len(rewards)


def test_the_gradient_is_the_capped_weight_times_the_advantage():
    logp_T = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    behavior_T = torch.tensor([-1.0, -1.0 + math.log(2), -9.0])
    inputs = ObjectiveInputs(logp_T, advantage_T=torch.tensor([1.0, -3.0, 1.0]), behavior_T=behavior_T)
    objective(inputs, MedianConfig(cap=2.0)).sum().backward()
    assert logp_T.grad.tolist() == pytest.approx([-1.0, 0.5 * 3.0, -2.0])


def test_a_cap_that_would_stop_all_learning_is_refused():
    with pytest.raises(ValueError, match="cap"):
        MedianConfig(cap=0.0)
