"""The op "experts" in recipe `fp8_1x128_pow2`, which is not MXFP8 (see `fp8_1x128_pow2` for what it gives and costs).

A kernel of its own, `mxfp8/fp8-1x128-pow2`: no setting of `mxfp8/experts` leads here. Output and input gradients are in
FP8, weight gradients are not, and autograd keeps what a layer without FP8 keeps.

Legend: N tokens, D model width, F expert width, E experts, K experts a token, R padded rows sorted by expert.
"""

from __future__ import annotations

import torch

from composer_core import BuildContext, NoConfig
from composer_core.tensors import Experts
from composer_plugin_mxfp8 import reference
from composer_plugin_mxfp8.fp8_1x128_pow2 import SIDE, grouped_linear


def fp8_experts(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
) -> torch.Tensor:
    """`composer_core.tensors.Experts`.

    Raises:
        ValueError: a width is not a multiple of 128.
    """
    if any(width % SIDE for width in down_EDF.shape[1:]):
        raise ValueError(f"blocks of {SIDE} do not divide widths of {[*down_EDF.shape[1:]]}; mxfp8/experts needs 32")
    plan = reference.plan(ids_NK, down_EDF.shape[0])
    h_R2F = grouped_linear(reference.gather(x_ND, plan), gate_up_E2FD, plan.ends_E)
    out_RD = grouped_linear(reference.swiglu(h_R2F), down_EDF, plan.ends_E)
    out_NKD = out_RD[plan.rows_NK] * weights_NK.to(out_RD.dtype).unsqueeze(-1)
    return out_NKD.sum(1)


def build(config: NoConfig, build: BuildContext) -> Experts:
    """Factory of the kernel, and of its reference: where Triton does not run, plain torch computes the same."""
    return fp8_experts
