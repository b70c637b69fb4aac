"""The kernel keeps its op's contract at the tolerance of its record, and reads no more than it must."""

from pathlib import Path

import torch

from composer_core import BuildContext
from composer_core.records import resolve
from composer_plugin_my_name.plugin import composer_kernels
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.kernels import ExpertsContract

(SPEC,) = composer_kernels()


def built(factory):
    return resolve(factory)(SPEC.config(), BuildContext(Path()))


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(ExpertsContract):
    tolerance = SPEC.tolerance

    def build(self):
        return built(SPEC.factory)

    def reference(self):
        return built(SPEC.reference)


def test_an_expert_reaches_only_the_tokens_that_chose_it():
    source = torch.Generator().manual_seed(0)
    x_ND, weights_NK = torch.randn(5, 8, generator=source), torch.ones(5, 2)
    gate_up_E2FD, down_EDF = torch.randn(3, 32, 8, generator=source), torch.randn(3, 8, 16, generator=source)
    gate_up_E2FD[2] = torch.nan  # whatever expert 2 computes spoils the token it is added to
    ids_NK = torch.tensor([[0, 1], [1, 0], [0, 2], [1, 0], [0, 1]])
    out_ND = built(SPEC.factory)(x_ND, ids_NK, weights_NK, gate_up_E2FD, down_EDF)
    assert out_ND.isnan().any(-1).tolist() == [False, False, True, False, False]
