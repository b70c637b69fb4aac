"""The op "experts" as a loop over the experts, and the dense sum that it must equal.

Legend: N tokens, D model width, F expert width, E experts, K experts a token, P pairs of a token and this expert.
"""

import torch
from torch.nn.functional import silu

from composer_core import BuildContext, NoConfig
from composer_core.tensors import Experts


def looped(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
) -> torch.Tensor:
    """`tensors.Experts` that computes each pair once: gather the tokens of an expert, two products, scatter.

    An expert that no token chose still takes part with no rows, so that its gradient is zero and not missing.
    """
    out_ND = torch.zeros_like(x_ND)
    for expert, (gate_up_2FD, down_DF) in enumerate(zip(gate_up_E2FD, down_EDF, strict=True)):
        token_P, place_P = torch.where(ids_NK == expert)
        gate_PF, up_PF = (x_ND[token_P] @ gate_up_2FD.T).chunk(2, dim=-1)
        share_PD = weights_NK[token_P, place_P, None] * ((silu(gate_PF) * up_PF) @ down_DF.T)
        out_ND = out_ND.index_add(0, token_P, share_PD.to(out_ND.dtype))
    return out_ND


def dense(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
) -> torch.Tensor:
    """The reference: every expert for every token, then the weighted sum. Slow, and plainly the formula."""
    gate_NEF, up_NEF = torch.einsum("nd,efd->nef", x_ND, gate_up_E2FD).chunk(2, dim=-1)
    each_NED = torch.einsum("nef,edf->ned", silu(gate_NEF) * up_NEF, down_EDF)
    share_NE = weights_NK.new_zeros(each_NED.shape[:2]).scatter_add(1, ids_NK, weights_NK)
    return torch.einsum("ne,ned->nd", share_NE, each_NED)


def build(config: NoConfig, build: BuildContext) -> Experts:
    """Factory of the kernel; models call what it returns in every layer."""
    return looped


def build_reference(config: NoConfig, build: BuildContext) -> Experts:
    """Factory of the reference."""
    return dense
