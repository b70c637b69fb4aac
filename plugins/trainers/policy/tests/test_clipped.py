"""Clipped objectives by hand: what each costs, and which tokens still move."""

from __future__ import annotations

import math

import pytest
import torch

from composer_core.errors import TrainerError
from composer_core.tensors import ObjectiveInputs
from composer_plugin_policy.clipped import cispo, gspo, ppo
from composer_plugin_policy.config import CispoConfig, DapoConfig, GspoConfig, PpoClipConfig

RATIOS = [0.5, 0.9, 1.1, 1.25, 1.5]


def _inputs(ratios: list[float], advantages: list[float], sequences: list[int] | None = None) -> ObjectiveInputs:
    logp_T = torch.linspace(-2.0, -0.5, len(ratios)).requires_grad_()
    return ObjectiveInputs(
        logp_T=logp_T,
        advantage_T=torch.tensor(advantages),
        behavior_T=logp_T.detach() - torch.tensor(ratios).log(),
        sequence_T=None if sequences is None else torch.tensor(sequences),
    )


def _gradient(objective, inputs, config) -> list[float]:
    objective(inputs, config).sum().backward()
    return inputs.logp_T.grad.tolist()


def test_ppo_takes_the_worse_of_the_ratio_and_its_clip():
    up, down = ([2.0] * 5, [-2.0] * 5)
    assert ppo(_inputs(RATIOS, up), PpoClipConfig()).tolist() == pytest.approx([-1.0, -1.8, -2.2, -2.4, -2.4])
    assert ppo(_inputs(RATIOS, down), PpoClipConfig()).tolist() == pytest.approx([1.6, 1.8, 2.2, 2.5, 3.0])


def test_a_token_beyond_the_clip_is_not_pushed_further_and_may_come_back():
    assert _gradient(ppo, _inputs(RATIOS, [2.0] * 5), PpoClipConfig()) == pytest.approx([-1.0, -1.8, -2.2, 0.0, 0.0])
    assert _gradient(ppo, _inputs(RATIOS, [-2.0] * 5), PpoClipConfig()) == pytest.approx([0.0, 1.8, 2.2, 2.5, 3.0])


def test_dapo_leaves_more_room_above_than_below():
    assert _gradient(ppo, _inputs(RATIOS, [2.0] * 5), DapoConfig()) == pytest.approx([-1.0, -1.8, -2.2, -2.5, 0.0])
    assert _gradient(ppo, _inputs(RATIOS, [-2.0] * 5), DapoConfig())[0] == 0.0


def test_gspo_weighs_every_token_by_its_sequences_geometric_mean():
    inputs = _inputs([0.5, 8.0, 1.1], [1.0, 1.0, -2.0], sequences=[4, 4, 9])
    config = GspoConfig(clip_low=0.9, clip_high=9.0)
    assert gspo(inputs, config).tolist() == pytest.approx([-2.0, -2.0, 2.2])
    assert _gradient(gspo, inputs, config) == pytest.approx([-2.0, -2.0, 2.2])


def test_gspo_clips_whole_sequences():
    ratios = [math.exp(x) for x in (2e-3, -1e-3, 1e-4, 1e-4)]  # means 5e-4 and 1e-4
    inputs = _inputs(ratios, [1.0] * 4, sequences=[0, 0, 1, 1])
    assert _gradient(gspo, inputs, GspoConfig()) == pytest.approx([0.0, 0.0, -math.exp(1e-4), -math.exp(1e-4)])


def test_gspo_does_not_depend_on_how_sequences_are_numbered_or_ordered():
    ratios, advantages = [0.5, 8.0, 1.1, 0.9], [1.0, 1.0, -2.0, 0.5]
    one = gspo(_inputs(ratios, advantages, [0, 0, 1, 0]), GspoConfig(0.9, 9.0))
    other = gspo(_inputs(ratios, advantages, [7, 7, -1, 7]), GspoConfig(0.9, 9.0))
    assert one.tolist() == other.tolist()


def test_cispo_caps_the_weight_and_keeps_every_token():
    inputs = _inputs([0.5, 1.0, 8.0], [1.0, -1.0, 2.0])
    logp = inputs.logp_T.tolist()
    loss_T = cispo(inputs, CispoConfig(cap=5.0))
    assert loss_T.tolist() == pytest.approx([-0.5 * logp[0], logp[1], -10.0 * logp[2]])
    assert _gradient(cispo, inputs, CispoConfig(cap=5.0)) == pytest.approx([-0.5, 1.0, -10.0])


@pytest.mark.parametrize(
    ("objective", "config"), [(ppo, PpoClipConfig()), (gspo, GspoConfig()), (cispo, CispoConfig())]
)
def test_without_the_samplers_log_probabilities_it_says_so(objective, config):
    inputs = ObjectiveInputs(logp_T=torch.zeros(1), advantage_T=torch.ones(1), sequence_T=torch.zeros(1))
    with pytest.raises(TrainerError, match="sampler's log-probabilities"):
        objective(inputs, config)


def test_gspo_without_sequences_says_so():
    with pytest.raises(TrainerError, match="which tokens belong together"):
        gspo(_inputs([1.0], [1.0]), GspoConfig())
