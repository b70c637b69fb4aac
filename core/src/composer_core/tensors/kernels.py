"""One Protocol per kernel op, with its exact signature.

Legend: N tokens, D model width, F expert width, E experts, K experts per token.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Experts(Protocol):
    """Op "experts": the routed feed-forward of a mixture-of-experts layer.

    out[n] = sum over k of weights[n, k] * down[e] @ (silu(g) * u), with e = ids[n, k] and [g; u] = gate_up[e] @ x[n].
    Source: SwiGLU experts as in Qwen3-MoE and DeepSeek-V3. Differentiable in x, weights, gate_up and down.
    Experts that no token chose get zero gradients; N may be 0.
    """

    def __call__(
        self,
        x_ND: torch.Tensor,
        ids_NK: torch.Tensor,
        weights_NK: torch.Tensor,
        gate_up_E2FD: torch.Tensor,
        down_EDF: torch.Tensor,
    ) -> torch.Tensor:
        """Returns [N, D] in the dtype of x."""
        ...
