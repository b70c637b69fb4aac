"""The algorithm keeps its kind's contract, and its numbers are those of its formulas."""

import pytest
import torch

from composer_core.tensors import ObjectiveInputs
from composer_plugin_my_name.objective import objective
from composer_plugin_my_name.plugin import MyNameConfig, advantage, composer_algorithms
from composer_testing.contracts.algorithms import AlgorithmContract
from composer_testing.contracts.hook_modules import HookModuleContract


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(AlgorithmContract):
    def record(self):
        (spec,) = composer_algorithms()
        return spec


def test_the_baseline_of_a_member_is_the_mean_of_the_others():
    assert advantage([1.0, 0.0, 0.5], MyNameConfig()) == pytest.approx([0.75, -0.75, 0.0])


def test_a_token_is_weighted_by_how_much_likelier_it_has_become_up_to_the_cap():
    inputs = ObjectiveInputs(
        logp_T=torch.tensor([-1.0, -1.0, -1.0]),
        advantage_T=torch.tensor([1.0, 1.0, 1.0]),
        behavior_T=torch.tensor([-1.0, -1.0 + torch.log(torch.tensor(2.0)).item(), -9.0]),
    )
    assert objective(inputs, MyNameConfig(cap=3.0)).tolist() == pytest.approx([1.0, 0.5, 3.0])
