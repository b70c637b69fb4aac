"""What every kernel of op "experts" must do (`tensors.kernels.Experts`). Subclass `ExpertsContract`.

Needs torch. Legend: N tokens, D model width, F expert width, E experts, K experts per token.
"""

from __future__ import annotations

import pytest
import torch

from composer_core.tensors import Experts

D, F, E, K = 32, 64, 8, 2
CASES = {
    "ragged": [[0, 1], [0, 2], [0, 1], [3, 0], [2, 0], [5, 0], [1, 3]],
    "some experts empty": [[4, 5]] * 9,
    "all to one expert first": [[2, 0], [2, 1], [2, 3], [2, 4], [2, 5]] * 7,
    "one token": [[3, 1]],
    "no token": [],
}


class ExpertsContract:
    """Name your subclass `Test...`; `tolerance` is the largest error relative to the reference's largest value."""

    tolerance = 1e-5

    def build(self) -> Experts:
        raise NotImplementedError("return the kernel")

    def reference(self) -> Experts:
        raise NotImplementedError("return a plain torch implementation of the same op")

    @pytest.mark.parametrize("case", CASES)
    def test_forward_equals_the_reference(self, case: str) -> None:
        inputs = _inputs(case)
        self._close(self.build()(*inputs), self.reference()(*inputs))

    @pytest.mark.parametrize("case", CASES)
    def test_gradients_equal_the_reference(self, case: str) -> None:
        ours, theirs = (self._gradients(kernel, case) for kernel in (self.build(), self.reference()))
        for mine, other in zip(ours, theirs, strict=True):
            self._close(mine, other)

    def test_experts_that_no_token_chose_get_zero_gradients(self) -> None:
        *_, gate_up_E2FD, down_EDF = self._gradients(self.build(), "some experts empty")
        assert not gate_up_E2FD[:4].any() and not down_EDF[:4].any()
        assert gate_up_E2FD[4:].any() and down_EDF[4:].any()

    def test_weights_of_a_pair_scale_its_share_alone(self) -> None:
        x_ND, ids_NK, weights_NK, gate_up_E2FD, down_EDF = _inputs("ragged")
        kernel = self.build()
        parts = [kernel(x_ND, ids_NK, weights_NK * torch.eye(K)[k], gate_up_E2FD, down_EDF) for k in range(K)]
        self._close(parts[0] + parts[1], kernel(x_ND, ids_NK, weights_NK, gate_up_E2FD, down_EDF))
        assert not torch.allclose(parts[0], parts[1])

    def _close(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        if theirs.numel():
            scale = theirs.abs().max().clamp(min=1e-12)
            assert float((ours - theirs).abs().max() / scale) <= self.tolerance

    def _gradients(self, kernel: Experts, case: str) -> list[torch.Tensor]:
        x_ND, ids_NK, weights_NK, gate_up_E2FD, down_EDF = _inputs(case)
        leaves = [tensor.requires_grad_() for tensor in (x_ND, weights_NK, gate_up_E2FD, down_EDF)]
        out_ND = kernel(leaves[0], ids_NK, *leaves[1:])
        toward_ND = torch.randn(out_ND.shape, generator=torch.Generator().manual_seed(1))
        grads = torch.autograd.grad((out_ND * toward_ND).sum(), leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]


def _inputs(case: str) -> tuple[torch.Tensor, ...]:
    source = torch.Generator().manual_seed(0)
    ids_NK = torch.tensor(CASES[case], dtype=torch.int64).reshape(-1, K)
    count = len(ids_NK)
    return (
        torch.randn(count, D, generator=source),
        ids_NK,
        torch.rand(count, K, generator=source) + 0.1,
        torch.randn(E, 2 * F, D, generator=source) / D**0.5,
        torch.randn(E, D, F, generator=source) / F**0.5,
    )
