"""`ops.Ops` in plain torch: the oracle of the kernels, and what runs where no GPU is.

Each function is its formula, with the rounding steps that the kernels have, in their order. The matrix products stand
in `reference_mm`. Legend: see `ops`.
"""

from __future__ import annotations

import torch

from composer_plugin_mxfp8 import formats, ops, reference_mm
from composer_plugin_mxfp8.formats import COLUMNWISE, MX, ROWWISE, Scaling, Shape
from composer_plugin_mxfp8.ops import Blocks, Plan, Routes, Score, padded_rows

ALIGN, FORWARD_ALIGN = ops.ALIGN, ops.FORWARD_ALIGN
swizzle, unswizzle = formats.swizzle, formats.unswizzle
grouped_mm, grouped_dgrad, grouped_wgrad = (
    reference_mm.grouped_mm,
    reference_mm.grouped_dgrad,
    reference_mm.grouped_wgrad,
)
decode_mm = reference_mm.decode_mm


def quantize_rows(x_MK: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_rows`."""
    return _quantize(x_MK, ROWWISE, scaling)


def quantize_columns(x_MK: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_columns`."""
    return _quantize(x_MK, COLUMNWISE, scaling)


def quantize_both(x_MK: torch.Tensor, scaling: Scaling = "rceil") -> tuple[Blocks, Blocks]:
    """See `Ops.quantize_both`."""
    return quantize_rows(x_MK, scaling), quantize_columns(x_MK, scaling)


def quantize_weights(w_ENK: torch.Tensor, block: Shape, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.quantize_weights`."""
    return _quantize(w_ENK, block, scaling)


def dequantize(x: Blocks, block: Shape, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """See `Ops.dequantize`."""
    return formats.dequantize(MX(*x, block), dtype)


def requantize_columns(x: Blocks) -> Blocks:
    """See `Ops.requantize_columns`."""
    return quantize_columns(dequantize(x, ROWWISE, torch.float32))


def plan(ids_NK: torch.Tensor, experts: int, align: int = ALIGN) -> Plan:
    """See `Ops.plan`: a stable sort of the pairs, then each row's place in it."""
    ids_P = ids_NK.reshape(-1)
    pairs = ids_P.numel()
    order_P = ids_P.argsort(stable=True)
    counts_E = ids_P.new_zeros(experts).index_add_(0, ids_P, torch.ones_like(ids_P))
    padded_E = (counts_E + align - 1) // align * align
    ends_E = padded_E.cumsum(0)
    shift_E = (ends_E - padded_E) - (counts_E.cumsum(0) - counts_E)
    rows_sorted_P = torch.arange(pairs, device=ids_P.device) + shift_E[ids_P[order_P]]
    rows_P = torch.empty_like(order_P).index_copy_(0, order_P, rows_sorted_P)
    pairs_R = ids_P.new_full((padded_rows(pairs, experts, align),), -1).index_copy_(0, rows_sorted_P, order_P)
    return Plan(pairs_R.int(), rows_P.view(ids_NK.shape).int(), ends_E.int())


def gather_quantize(
    x_ND: torch.Tensor, plan: Plan, scaling: Scaling = "rceil", weights_NK: torch.Tensor | None = None
) -> Blocks:
    """See `Ops.gather_quantize`."""
    return quantize_rows(gather(x_ND, plan, weights_NK), scaling)


def gather_quantize_both(
    x_ND: torch.Tensor, plan: Plan, scaling: Scaling = "rceil", weights_NK: torch.Tensor | None = None
) -> tuple[Blocks, Blocks]:
    """See `Ops.gather_quantize_both`."""
    return quantize_both(gather(x_ND, plan, weights_NK), scaling)


def gather_rows(x: Blocks, plan: Plan) -> Blocks:
    """See `Ops.gather_rows`."""
    data, scale = (gather(part, plan) for part in (x.data.view(torch.uint8), x.scale))
    return Blocks(data.view(x.data.dtype), scale)


def gather_both(x: Blocks, plan: Plan) -> tuple[Blocks, Blocks]:
    """See `Ops.gather_both`."""
    rows = gather_rows(x, plan)
    return rows, requantize_columns(rows)


def gather_columns(x: Blocks, plan: Plan) -> Blocks:
    """See `Ops.gather_columns`."""
    return gather_both(x, plan)[1]


def combine(
    out_RD: torch.Tensor, plan: Plan, weights_NK: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """See `Ops.combine`."""
    total_ND = torch.zeros(plan.rows_NK.shape[0], out_RD.shape[1], dtype=torch.float32, device=out_RD.device)
    for rows_N, weights_N in zip(plan.rows_NK.unbind(1), weights_NK.float().unbind(1), strict=True):
        total_ND += out_RD[rows_N].float() * weights_N[:, None]
    return total_ND.to(dtype or out_RD.dtype)


def combine_backward(
    dout_ND: torch.Tensor, out_RD: torch.Tensor, plan: Plan, weights_NK: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.combine_backward`."""
    dweights_NK = torch.stack(
        [(out_RD[rows_N].float() * dout_ND.float()).sum(1) for rows_N in plan.rows_NK.unbind(1)], 1
    )
    return gather(dout_ND, plan, weights_NK), dweights_NK


def scatter_rows(dx_RD: torch.Tensor, plan: Plan, dtype: torch.dtype | None = None) -> torch.Tensor:
    """See `Ops.scatter_rows`."""
    return combine(dx_RD, plan, torch.ones(plan.rows_NK.shape, device=dx_RD.device), dtype)


def swiglu(h_R2F: torch.Tensor) -> torch.Tensor:
    """act = silu(gate) x up in fp32, rounded to the dtype of h. Source: Shazeer, arXiv 2002.05202."""
    gate_RF, up_RF = h_R2F.float().chunk(2, -1)
    return (gate_RF * torch.sigmoid(gate_RF) * up_RF).to(h_R2F.dtype)


def swiglu_quantize(h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
    """See `Ops.swiglu_quantize`."""
    return quantize_rows(swiglu(h_R2F), scaling)


def swiglu_quantize_both(h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> tuple[Blocks, Blocks]:
    """See `Ops.swiglu_quantize_both`."""
    return quantize_both(swiglu(h_R2F), scaling)


def swiglu_gradient(dact_RF: torch.Tensor, h_R2F: torch.Tensor) -> torch.Tensor:
    """dh = [dgate, dup] in fp32, rounded to the dtype of h."""
    gate_RF, up_RF = h_R2F.float().chunk(2, -1)
    sigmoid_RF = torch.sigmoid(gate_RF)
    silu_RF = gate_RF * sigmoid_RF
    dact_RF = dact_RF.float()
    dgate_RF = dact_RF * up_RF * (sigmoid_RF + silu_RF * (1 - sigmoid_RF))
    return torch.cat([dgate_RF, dact_RF * silu_RF], -1).to(h_R2F.dtype)


def swiglu_backward(dact_RF: torch.Tensor, h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> tuple[Blocks, Blocks]:
    """See `Ops.swiglu_backward`."""
    return quantize_both(swiglu_gradient(dact_RF, h_R2F), scaling)


def swiglu_backward_weighted(
    dact_RF: torch.Tensor, h_R2F: torch.Tensor, plan: Plan, weights_NK: torch.Tensor, scaling: Scaling = "rceil"
) -> tuple[Blocks, Blocks, Blocks, torch.Tensor]:
    """See `Ops.swiglu_backward_weighted`."""
    act_RF, dh_R2F, dweights_R1 = swiglu_gradients(dact_RF, h_R2F, weights_of(plan, weights_NK))
    return *quantize_both(dh_R2F, scaling), quantize_columns(act_RF, scaling), dweights_R1[plan.rows_NK, 0]


def swiglu_gradients(
    dact_RF: torch.Tensor, h_R2F: torch.Tensor, weights_R1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `swiglu_backward_weighted` quantizes: weights x act and dh in the dtype of h, and fp32 dact . act [R, 1]."""
    act_RF, dact_RF = swiglu(h_R2F).float(), dact_RF.float()
    dh_R2F = swiglu_gradient(dact_RF * weights_R1, h_R2F)
    return (act_RF * weights_R1).to(h_R2F.dtype), dh_R2F, (dact_RF * act_RF).sum(1, keepdim=True)


def route(
    logits_NE: torch.Tensor,
    k: int,
    bias_E: torch.Tensor | None = None,
    score: Score = "softmax",
    normalize: bool = True,
) -> Routes:
    """See `Ops.route`."""
    scores_NE = logits_NE.float().softmax(-1) if score == "softmax" else torch.sigmoid(logits_NE.float())
    choice_NE = scores_NE if bias_E is None else scores_NE + bias_E.float()
    ids_NK = choice_NE.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights_NK = scores_NE.gather(1, ids_NK)
    if normalize:
        weights_NK = weights_NK / weights_NK.sum(1, keepdim=True)
    load_E = torch.zeros(logits_NE.shape[1], dtype=torch.int32, device=ids_NK.device)
    flat_P = ids_NK.reshape(-1)
    return Routes(ids_NK, weights_NK, load_E.index_add_(0, flat_P, torch.ones_like(flat_P, dtype=torch.int32)))


def balance_bias(bias_E: torch.Tensor, load_E: torch.Tensor, step: float = 1e-3) -> torch.Tensor:
    """See `Ops.balance_bias`."""
    load_E = load_E.float()
    return bias_E + step * torch.sign(load_E.mean() - load_E)


def _quantize(x: torch.Tensor, block: Shape, scaling: Scaling) -> Blocks:
    mx = formats.quantize(x, block, scaling)
    return Blocks(mx.data, mx.scale)


def gather(x_ND: torch.Tensor, plan: Plan, weights_NK: torch.Tensor | None = None) -> torch.Tensor:
    """[R, D] in the dtype of x: each row's token, times its pair's weight where given; padding is zero."""
    source_R = plan.source
    if not x_ND.shape[0]:
        return x_ND.new_zeros(source_R.shape[0], x_ND.shape[1])
    x_RD = x_ND[source_R.clamp(min=0)]
    if weights_NK is not None:
        x_RD = (x_RD.float() * weights_of(plan, weights_NK)).to(x_ND.dtype)
    return x_RD.masked_fill(source_R[:, None] < 0, 0)


def weights_of(plan: Plan, weights_NK: torch.Tensor) -> torch.Tensor:
    """fp32 [R, 1]: the weight of each row's pair, 0 on padding."""
    weights_R = weights_NK.float().reshape(-1)[plan.pairs_R.clamp(min=0)]
    return weights_R.masked_fill(plan.pairs_R < 0, 0)[:, None]
