"""Objectives by hand: truncated importance sampling with the cap binding and not, and the plain likelihood."""

from __future__ import annotations

import math

import pytest
import torch

from composer_core.errors import TrainerError
from composer_core.tensors import ObjectiveInputs
from composer_plugin_policy.config import PolicyGradientConfig
from composer_plugin_policy.objectives import nll, pg_tis


def _inputs(ratios: list[float], advantages: list[float]) -> ObjectiveInputs:
    logp_T = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    old_T = logp_T.detach()
    return ObjectiveInputs(
        logp_T=logp_T,
        advantage_T=torch.tensor(advantages),
        old_T=old_T,
        behavior_T=old_T - torch.tensor([math.log(ratio) for ratio in ratios]),
    )


def test_pg_tis_weighs_each_token_by_its_ratio_up_to_the_cap():
    inputs = _inputs(ratios=[0.5, 1.0, 8.0], advantages=[1.0, -1.0, 0.25])
    loss_T = pg_tis(inputs, PolicyGradientConfig(cap=2.0))
    assert loss_T.tolist() == pytest.approx([-0.5 * 1.0 * -1.0, -1.0 * -1.0 * -2.0, -2.0 * 0.25 * -0.5])


def test_the_gradient_of_pg_tis_is_minus_weight_times_advantage():
    inputs = _inputs(ratios=[0.5, 1.0, 8.0], advantages=[1.0, -1.0, 0.25])
    pg_tis(inputs, PolicyGradientConfig(cap=2.0)).sum().backward()
    assert inputs.logp_T.grad.tolist() == pytest.approx([-0.5, 1.0, -0.5])


def test_the_weight_carries_no_gradient_even_when_old_is_the_same_tensor():
    logp_T = torch.tensor([-1.0], requires_grad=True)
    inputs = ObjectiveInputs(logp_T=logp_T, advantage_T=torch.ones(1), old_T=logp_T, behavior_T=torch.tensor([-1.5]))
    pg_tis(inputs, PolicyGradientConfig()).sum().backward()
    assert logp_T.grad.item() == pytest.approx(-math.exp(0.5))


def test_pg_tis_without_the_samplers_log_probabilities_says_so():
    inputs = ObjectiveInputs(logp_T=torch.zeros(1), advantage_T=torch.ones(1), old_T=torch.zeros(1))
    with pytest.raises(TrainerError, match="sampler's log-probabilities"):
        pg_tis(inputs, PolicyGradientConfig())


def test_nll_is_minus_the_log_probability():
    logp_T = torch.tensor([-1.0, -0.25])
    assert nll(ObjectiveInputs(logp_T=logp_T, advantage_T=torch.zeros(2))).tolist() == [1.0, 0.25]
