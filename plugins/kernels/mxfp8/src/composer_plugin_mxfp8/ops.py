"""What an implementation of this package computes: one Protocol, kept by two modules.

`reference` is plain torch, runs on any device and is the oracle; `kernels` is Triton, each op registered with torch as
`composer_mxfp8::NAME`. A caller picks the module once and calls the same functions on it. Nothing here waits for the
device: no op reads a value back to the host, so all shapes follow from the shapes of the inputs.

Legend: N tokens, D model width, F expert width, E experts, K experts a token (`ids_NK`) or contraction (`data_MK`),
M any rows, R rows padded so that each expert's begin at a multiple of `ALIGN`. Scales are uint8 E8M0 bytes in the plain
layout; "rows" means blocks of 1x32 (scale [M, K / 32]), "columns" 32x1 (scale [M / 32, K]); data keeps its place.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch

from composer_plugin_mxfp8.formats import Scaling, Shape

ALIGN = 128
"""Rows of an expert are padded to a multiple of this: a tile of the tcgen05 scale layout, and four blocks of 32."""

FORWARD_ALIGN = ALIGN
"""The same where no gradient follows; plain torch on a CPU pads less."""

Score = Literal["softmax", "sigmoid"]


class Blocks(NamedTuple):
    """A quantized operand at this seam; its block shape is said by the op that makes or takes it."""

    data: torch.Tensor
    """float8_e4m3fn, the shape of what was quantized."""
    scale: torch.Tensor
    """uint8 E8M0, plain layout."""


class Routes(NamedTuple):
    """What a router decided for N tokens."""

    ids_NK: torch.Tensor
    """int64, best first; equal scores in the order of the experts."""
    weights_NK: torch.Tensor
    """fp32 gate values, from scores without the bias."""
    load_E: torch.Tensor
    """int32, how many tokens chose each expert."""


class Plan(NamedTuple):
    """Where the pairs of (token, chosen expert) stand when sorted by expert. All int32, all on the ids' device.

    R is a bound known from the shapes, `padded_rows`; rows behind the last expert's are padding too.
    """

    pairs_R: torch.Tensor
    """Pair n x K + k that stands in each row, -1 for padding; an expert's pairs keep their order."""
    rows_NK: torch.Tensor
    """Row of each pair: the inverse of `pairs_R`."""
    ends_E: torch.Tensor
    """Row behind the last of each expert, padding included; the first expert starts at 0."""

    @property
    def chosen(self) -> int:
        """K."""
        return self.rows_NK.shape[1]

    @property
    def source(self) -> torch.Tensor:
        """int32 [R]: token of each row, -1 for padding."""
        return self.pairs_R.div(max(1, self.chosen), rounding_mode="floor")


def padded_rows(pairs: int, experts: int, align: int = ALIGN) -> int:
    """R: enough for any routing of `pairs` among `experts`, each expert's rows padded to a multiple of `align`."""
    return (pairs + min(pairs, experts) * (align - 1)) // align * align


class Ops(Protocol):
    """The functions of `reference` and `kernels`. Float inputs are bf16 or fp32, computed in fp32."""

    ALIGN: int
    """What the layer asks `plan` to pad each expert's rows to."""
    FORWARD_ALIGN: int
    """The same where no gradient follows."""

    def quantize_rows(self, x_MK: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
        """Blocks of 1x32 along the last dimension."""
        ...

    def quantize_columns(self, x_MK: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
        """Blocks of 32x1 down the rows."""
        ...

    def quantize_both(self, x_MK: torch.Tensor, scaling: Scaling = "rceil") -> tuple[Blocks, Blocks]:
        """Rows and columns, from one read of x."""
        ...

    def quantize_weights(self, w_ENK: torch.Tensor, block: Shape, scaling: Scaling = "rceil") -> Blocks:
        """Each expert's matrix in blocks of (1, 32), (32, 1) or (32, 32)."""
        ...

    def dequantize(self, x: Blocks, block: Shape, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """[..., M, K] back to bf16 or fp32, rounded once."""
        ...

    def swizzle(self, scale: torch.Tensor) -> torch.Tensor:
        """As `formats.swizzle`; the scale may be a transposed view."""
        ...

    def unswizzle(self, scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """As `formats.unswizzle`."""
        ...

    def requantize_columns(self, x: Blocks) -> Blocks:
        """Rows to columns: the bytes of `quantize_columns` (rceil) of the dequantized tensor, which is never written.

        Scales being powers of two, this moves exponents; an element is rounded again only where it falls below E4M3's
        normal range under its new scale. So one saved copy serves both products of a backward.
        """
        ...

    def plan(self, ids_NK: torch.Tensor, experts: int, align: int = ALIGN) -> Plan:
        """Counting sort of the pairs by expert; the same ids always give the same plan."""
        ...

    def gather_quantize(
        self, x_ND: torch.Tensor, plan: Plan, scaling: Scaling = "rceil", weights_NK: torch.Tensor | None = None
    ) -> Blocks:
        """The token of each row, times its pair's weight where given (rounded to the dtype of x); padding is zero."""
        ...

    def gather_quantize_both(
        self, x_ND: torch.Tensor, plan: Plan, scaling: Scaling = "rceil", weights_NK: torch.Tensor | None = None
    ) -> tuple[Blocks, Blocks]:
        """As `gather_quantize`, rows and columns from one read."""
        ...

    def gather_rows(self, x: Blocks, plan: Plan) -> Blocks:
        """As `gather_quantize` for tokens quantized before, in rows: bytes move, and each is quantized once."""
        ...

    def gather_both(self, x: Blocks, plan: Plan) -> tuple[Blocks, Blocks]:
        """`gather_rows`, and `requantize_columns` of it, from one read."""
        ...

    def gather_columns(self, x: Blocks, plan: Plan) -> Blocks:
        """`requantize_columns` of `gather_rows`, which are never written."""
        ...

    def combine(
        self, out_RD: torch.Tensor, plan: Plan, weights_NK: torch.Tensor, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """out[n] = sum over k of weights[n, k] x out_RD[rows[n, k]], in fp32 in the order of k; [N, D] in `dtype`.

        `dtype` is that of `out_RD` when None. Rows that no pair has are not read.
        """
        ...

    def combine_backward(
        self, dout_ND: torch.Tensor, out_RD: torch.Tensor, plan: Plan, weights_NK: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of `combine`: [R, D] in the dtype of `dout_ND`, zero on padding, and fp32 [N, K]."""
        ...

    def scatter_rows(self, dx_RD: torch.Tensor, plan: Plan, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Gradient of a gather: [N, D], each token the sum of its K rows in fp32 in the order of k; no atomics."""
        ...

    def swiglu_quantize(self, h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> Blocks:
        """Rows of act = silu(gate) x up, h = [gate, up]; act is rounded to the dtype of h before it is quantized."""
        ...

    def swiglu_quantize_both(self, h_R2F: torch.Tensor, scaling: Scaling = "rceil") -> tuple[Blocks, Blocks]:
        """Rows and columns of act."""
        ...

    def swiglu_backward(
        self, dact_RF: torch.Tensor, h_R2F: torch.Tensor, scaling: Scaling = "rceil"
    ) -> tuple[Blocks, Blocks]:
        """Rows and columns of dh [R, 2F], rounded to the dtype of h before it is quantized."""
        ...

    def swiglu_backward_weighted(
        self,
        dact_RF: torch.Tensor,
        h_R2F: torch.Tensor,
        plan: Plan,
        weights_NK: torch.Tensor,
        scaling: Scaling = "rceil",
    ) -> tuple[Blocks, Blocks, Blocks, torch.Tensor]:
        """Backward when `dact_RF` came from gradients that no weight had scaled: dweights need no saved output then.

        Returns rows and columns of dh for weights x dact, columns of weights x act (the other operand of the down
        projection's weight gradient), and dweights_NK = sum over F of dact x act, fp32. Source: SonicMoE.
        """
        ...

    def route(
        self,
        logits_NE: torch.Tensor,
        k: int,
        bias_E: torch.Tensor | None = None,
        score: Score = "softmax",
        normalize: bool = True,
    ) -> Routes:
        """Top k of score + bias; weights are the scores alone, and sum to 1 where `normalize`.

        Source: DeepSeek-V3 (arXiv 2412.19437, 2.1.2) with "sigmoid", Qwen3-MoE with "softmax" and no bias.
        """
        ...

    def balance_bias(self, bias_E: torch.Tensor, load_E: torch.Tensor, step: float = 1e-3) -> torch.Tensor:
        """The next bias: up by `step` for experts below the mean load, down for those above (arXiv 2408.15664)."""
        ...

    def grouped_mm(
        self, a: Blocks, w: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.bfloat16
    ) -> torch.Tensor:
        """y[r] = w[e] @ a[r] for each expert's rows, both scaled 1x32; [R, N] in `dtype`, undefined past the ends."""
        ...

    def grouped_dgrad(
        self, dy: Blocks, w: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.bfloat16
    ) -> torch.Tensor:
        """dx[r] = dy[r] @ w[e], dy scaled 1x32 and w 32x1, along N both; [R, K] in `dtype`."""
        ...

    def grouped_wgrad(
        self, dy: Blocks, x: Blocks, ends_E: torch.Tensor, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """dw[e] = dy.T @ x over the rows of each expert, both scaled 32x1; [E, N, K], zero for experts without rows."""
        ...

    def decode_mm(
        self, x_MD: torch.Tensor, ids_P: torch.Tensor, w: Blocks, dtype: torch.dtype = torch.bfloat16
    ) -> torch.Tensor:
        """y[p] = w[ids[p]] @ x[p // (P / M)] for few pairs: x in bf16 or fp32, weights [E, N, D] scaled 1x32;
        [P, N] in `dtype`.

        M is P, or a divisor of it where pairs that follow each other share a row (the K experts of a token). bf16 holds
        the values of rows that were quantized and brought back exactly, which is how sampling repeats training's sums.
        """
        ...
