"""The op "experts" in MXFP8: SwiGLU experts of a mixture, forward and backward, over any module that keeps `ops.Ops`.

What is quantized, with blocks along the axis that the product contracts over:

    forward                            backward, of dy
    a = rows of x, gathered            g    = rows of dy, gathered, not weighted yet
    h = a @ gate_up.T                  dact = g @ down               (of the unweighted output)
    s = rows of silu(gate) * up        dh   = rows and columns of the SwiGLU's gradient, weighted
    o = s @ down.T                     dx   = dh @ gate_up, brought back to tokens
    y = weighted sum of a token's o    ddown = g.T @ (weights * act), dgate_up = dh.T @ a, all along the rows

The forward saves the MXFP8 copy of x (one row a token, not one a chosen expert) and h. The operands of weight gradients
come out of MXFP8 rows: scales are powers of two, so a change of axis moves exponents and loses next to nothing. The
gradient of a router's weight is dact . act, which equals dy . o, so no output is kept (SonicMoE, arXiv 2512.14080).
Recipe `rceil_hp_wgrad` saves x as it came and makes both weight gradients of operands that are not quantized.

Nothing waits for the device. Master weights, router, sums over a token's experts and gradients are not quantized.

Legend: N tokens, D model width, F expert width, E experts, K experts a token, R padded rows sorted by expert.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from composer_plugin_mxfp8.config import MXFP8Config
from composer_plugin_mxfp8.formats import BLOCK, ROWWISE
from composer_plugin_mxfp8.implementation import choose
from composer_plugin_mxfp8.ops import Blocks, Ops, Plan
from composer_plugin_mxfp8.reference import gather, swiglu_gradients, weights_of
from composer_plugin_mxfp8.reference_mm import grouped_product
from composer_plugin_mxfp8.weights import Weights, quantized

DEFAULT = MXFP8Config()
COPIED_WEIGHTS = 1 << 20
"""Most weights of one projection that are copied for a handful of pairs on a CPU; more would only move memory."""


def mxfp8_experts(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
    config: MXFP8Config = DEFAULT,
    *,
    deterministic: bool = False,
) -> torch.Tensor:
    """`composer_core.tensors.Experts` in MXFP8: [N, D] in the dtype of x.

    `deterministic`: no shortcut for a handful of pairs, so that a row has the same bytes in any company.

    Raises:
        ValueError: a width is not a multiple of 32.
        RuntimeError: `config.implementation` is "triton" and cannot run on these tensors.
    """
    ops = choose(config.implementation, x_ND.device)
    return with_ops(x_ND, ids_NK, weights_NK, gate_up_E2FD, down_EDF, ops, config, deterministic)


def with_ops(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up_E2FD: torch.Tensor,
    down_EDF: torch.Tensor,
    ops: Ops,
    config: MXFP8Config = DEFAULT,
    deterministic: bool = False,
) -> torch.Tensor:
    """The same over a given implementation."""
    check_widths(*down_EDF.shape[1:])
    if not x_ND.shape[0]:  # an empty sum of each weight, so that all get a gradient, which is zero
        return x_ND + sum(part.sum() for part in (weights_NK, gate_up_E2FD[:, :0], down_EDF[:, :0]))
    inputs = (x_ND, weights_NK, gate_up_E2FD, down_EDF)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        trained: torch.Tensor = _Experts.apply(*inputs, ids_NK, ops, config)  # type: ignore[no-untyped-call]
        return trained
    gate_up, down = quantized(gate_up_E2FD, ops, config), quantized(down_EDF, ops, config)
    if not deterministic and few(ids_NK, gate_up_E2FD):
        return _decode(x_ND, ids_NK, weights_NK, gate_up, down, ops, config)
    plan = ops.plan(ids_NK, len(down_EDF), ops.FORWARD_ALIGN)
    h_R2F = _first(ops.quantize_rows(x_ND, config.scaling), plan, gate_up, x_ND.dtype, ops)
    return _second(h_R2F, plan, weights_NK, down, ops, config)


def check_widths(width: int, expert_width: int) -> None:
    """Raises ValueError when a block of 32 does not divide the model's or the expert's width."""
    if width % BLOCK or expert_width % BLOCK:
        raise ValueError(
            f"MXFP8 blocks of {BLOCK} do not divide a model width of {width} and an expert width of {expert_width}: "
            f"both must be multiples of {BLOCK}"
        )


def few(ids_NK: torch.Tensor, gate_up_E2FD: torch.Tensor) -> bool:
    """Whether reading each pair's weights costs less than a grouped product, which visits every expert."""
    pairs = ids_NK.numel()
    if ids_NK.device.type == "cpu":
        return pairs * gate_up_E2FD[0].numel() <= COPIED_WEIGHTS and 4 * pairs <= len(gate_up_E2FD)
    return pairs <= DECODE_PAIRS


DECODE_PAIRS = 1024
"""Most pairs of which a GPU multiplies each with its expert's 8-bit weights; above, rows are sorted by expert. The two
cross between 1024 and 2048 pairs on an H200, with 64 experts of 7168 x 2048 and with 128 of 2048 x 768."""


class _Experts(torch.autograd.Function):
    """The products of the module's docstring; gradients for x, weights, gate_up and down."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: torch.Tensor,
        weights_NK: torch.Tensor,
        gate_up_E2FD: torch.Tensor,
        down_EDF: torch.Tensor,
        ids_NK: torch.Tensor,
        ops: Ops,
        config: MXFP8Config,
    ) -> torch.Tensor:
        plan = ops.plan(ids_NK, len(down_EDF), ops.ALIGN)
        x = ops.quantize_rows(x_ND, config.scaling)
        h_R2F = _first(x, plan, quantized(gate_up_E2FD, ops, config), x_ND.dtype, ops)
        kept = (x_ND,) if config.exact_wgrad else x
        ctx.save_for_backward(weights_NK, gate_up_E2FD, down_EDF, h_R2F, plan.pairs_R, plan.rows_NK, plan.ends_E, *kept)
        ctx.ops, ctx.config, ctx.dtype = ops, config, x_ND.dtype
        return _second(h_R2F, plan, weights_NK, quantized(down_EDF, ops, config), ops, config)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_ND: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weights_NK, gate_up_E2FD, down_EDF, h_R2F, pairs_R, rows_NK, ends_E, *kept = ctx.saved_tensors
        ops, config, plan = ctx.ops, ctx.config, Plan(pairs_R, rows_NK, ends_E)
        dy = ops.quantize_rows(dy_ND, config.scaling)
        g, g_columns = (ops.gather_rows(dy, plan), None) if config.exact_wgrad else ops.gather_both(dy, plan)
        down, gate_up = quantized(down_EDF, ops, config), quantized(gate_up_E2FD, ops, config)
        dact_RF = ops.grouped_dgrad(g, down.columns, ends_E, dtype=ctx.dtype)
        if g_columns is None:
            dh, dweights_NK, dgate_up, ddown = _exact(dact_RF, h_R2F, plan, weights_NK, kept[0], dy_ND, ops)
        else:
            dh, dh_columns, act, dweights_NK = ops.swiglu_backward_weighted(
                dact_RF, h_R2F, plan, weights_NK, config.scaling
            )
            x = ops.gather_columns(Blocks(*kept), plan)
            dgate_up = ops.grouped_wgrad(dh_columns, x, ends_E, dtype=gate_up_E2FD.dtype)
            ddown = ops.grouped_wgrad(g_columns, act, ends_E, dtype=down_EDF.dtype)
        dx_RD = ops.grouped_dgrad(dh, gate_up.columns, ends_E, dtype=ctx.dtype)
        dx_ND = ops.scatter_rows(dx_RD, plan, ctx.dtype)
        return dx_ND, dweights_NK.to(weights_NK.dtype), dgate_up, ddown, None, None, None


def _first(x: Blocks, plan: Plan, gate_up: Weights, dtype: torch.dtype, ops: Ops) -> torch.Tensor:
    """h [R, 2F] of the tokens' MXFP8 rows."""
    return ops.grouped_mm(ops.gather_rows(x, plan), gate_up.rows, plan.ends_E, dtype=dtype)


def _second(
    h_R2F: torch.Tensor, plan: Plan, weights_NK: torch.Tensor, down: Weights, ops: Ops, config: MXFP8Config
) -> torch.Tensor:
    """y [N, D] of h."""
    act = ops.swiglu_quantize(h_R2F, config.scaling)
    out_RD = ops.grouped_mm(act, down.rows, plan.ends_E, dtype=h_R2F.dtype)
    return ops.combine(out_RD, plan, weights_NK, h_R2F.dtype)


def _decode(
    x_ND: torch.Tensor,
    ids_NK: torch.Tensor,
    weights_NK: torch.Tensor,
    gate_up: Weights,
    down: Weights,
    ops: Ops,
    config: MXFP8Config,
) -> torch.Tensor:
    """The same numbers for a handful of pairs, without sorting; operands in high precision hold MXFP8 values."""
    ids_P = ids_NK.reshape(-1)
    dtype = x_ND.dtype
    x_ND = ops.dequantize(ops.quantize_rows(x_ND, config.scaling), ROWWISE, dtype)
    h_P2F = ops.decode_mm(x_ND, ids_P, gate_up.rows, dtype=dtype)
    act_PF = ops.dequantize(ops.swiglu_quantize(h_P2F, config.scaling), ROWWISE, dtype)
    out_NKD = ops.decode_mm(act_PF, ids_P, down.rows, dtype=dtype).view(*ids_NK.shape, -1)
    return (out_NKD.float() * weights_NK.float().unsqueeze(-1)).sum(1).to(dtype)


def _exact(
    dact_RF: torch.Tensor,
    h_R2F: torch.Tensor,
    plan: Plan,
    weights_NK: torch.Tensor,
    x_ND: torch.Tensor,
    dy_ND: torch.Tensor,
    ops: Ops,
) -> tuple[Blocks, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of dh, dweights, and both weight gradients of operands that were never quantized."""
    act_RF, dh_R2F, dweights_R1 = swiglu_gradients(dact_RF, h_R2F, weights_of(plan, weights_NK))
    dgate_up = _wgrad(dh_R2F, gather(x_ND, plan), plan)
    ddown = _wgrad(gather(dy_ND, plan), act_RF, plan)
    return ops.quantize_rows(dh_R2F), dweights_R1[plan.rows_NK, 0], dgate_up, ddown


def _wgrad(dy_RN: torch.Tensor, x_RK: torch.Tensor, plan: Plan) -> torch.Tensor:
    """[E, N, K] in the dtype of x."""
    return grouped_product(dy_RN.to(x_RK.dtype).T, x_RK, plan.ends_E)
