"""Weights are quantized once for each version, and whatever changes them makes a version."""

import pytest
import torch

from composer_plugin_mxfp8 import MXFP8Config, reference
from composer_plugin_mxfp8.weights import forget, quantized

CONFIG = MXFP8Config()


@pytest.fixture
def weight_ENK():
    return torch.nn.Parameter(torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(3)))


def bytes_of(weight_ENK):
    return quantized(weight_ENK, reference, CONFIG).rows.data.view(torch.uint8).clone()


def fresh(weight_ENK):
    return bytes_of(torch.nn.Parameter(weight_ENK.detach().clone()))


def test_a_version_is_quantized_once(weight_ENK):
    assert quantized(weight_ENK, reference, CONFIG) is quantized(weight_ENK, reference, CONFIG)


@pytest.mark.parametrize("how", [{}, {"fused": True}, {"foreach": True}, {"foreach": False}])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_step_of_any_optimizer_is_a_version(weight_ENK, kind, how):
    """Fused ones write behind the parameter's own counter."""
    before, optimizer = bytes_of(weight_ENK), kind([weight_ENK], lr=1.0, **how)
    weight_ENK.grad = torch.randn(weight_ENK.shape, generator=torch.Generator().manual_seed(4))
    optimizer.step()
    assert not torch.equal(bytes_of(weight_ENK), before)
    assert torch.equal(bytes_of(weight_ENK), fresh(weight_ENK))


def test_loaded_weights_are_a_version(weight_ENK):
    module = torch.nn.ParameterList([weight_ENK])
    bytes_of(weight_ENK)
    module.load_state_dict({"0": torch.ones(2, 32, 64)})
    assert torch.equal(bytes_of(weight_ENK), fresh(weight_ENK))


def test_who_writes_through_data_says_so(weight_ENK):
    before = bytes_of(weight_ENK)
    weight_ENK.data.neg_()
    assert torch.equal(bytes_of(weight_ENK), before)
    forget(torch.nn.ParameterList([weight_ENK]))
    assert torch.equal(bytes_of(weight_ENK), fresh(weight_ENK))
