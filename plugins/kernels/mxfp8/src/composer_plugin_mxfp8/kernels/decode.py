"""The product of a handful of pairs with 8-bit weights: bound by reading the weights of each chosen expert once.

A program is a tile of outputs and an expert or, where pairs are fewer than experts, a pair: then the first pair of an
expert computes for all of that expert and the others end at once. So no list is made first and the launch needs nothing
but the ids. Weights are the left operand and are scaled on their way to the tensor cores, as in `hopper`.

Legend: P pairs, K chosen experts of a token, E experts, N outputs, D inputs; a weight is [E, N, D] in E4M3 scaled 1x32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from composer_plugin_mxfp8.kernels.hopper import Tile, described
from composer_plugin_mxfp8.kernels.tiles import result, scaled, scales, wide


@triton.jit
def weights_by_pairs(
    x_ptr, ids_ptr, w_desc, scale_ptr, y_ptr, P, N, D, share, blocks,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PAIRS: tl.constexpr, BF16: tl.constexpr,
    WHOLE: tl.constexpr, BY_EXPERT: tl.constexpr,
):  # fmt: skip
    """y[p, n] = sum over d of w[ids[p]][n, d] x[p // share, d]; tiles of y transposed, [BM outputs, BN pairs]."""
    every = tl.arange(0, PAIRS)
    ids = tl.load(ids_ptr + every, mask=every < P, other=-1).to(tl.int32)
    if BY_EXPERT:
        expert = tl.program_id(1)
        same = ids == expert
        count = tl.sum(same.to(tl.int32))
    else:
        expert = tl.load(ids_ptr + tl.program_id(1)).to(tl.int32)
        same = ids == expert
        earlier = tl.sum((same & (every < tl.program_id(1))).to(tl.int32))
        count = tl.where(earlier == 0, tl.sum(same.to(tl.int32)), 0)
    if count > 0:
        rank = tl.cumsum(same.to(tl.int32)) - 1
        m = tl.program_id(0) * BM
        n = m + tl.arange(0, BM)
        d = tl.arange(0, BK)
        row_ptr = scale_ptr + (expert.to(tl.int64) * N + n) * blocks
        limit = tl.where(n < N, blocks, 0)
        for first in range(0, count, BN):
            slot = first + tl.arange(0, BN)
            taken = same[None, :] & (rank[None, :] == slot[:, None])
            p = tl.sum(tl.where(taken, every[None, :], 0), 1)
            live = slot < count
            x_row = x_ptr + (p // share).to(tl.int64)[None, :] * D + d[:, None]
            acc = tl.zeros((BM, BN), tl.float32)
            bytes = scales(row_ptr, 0, limit, BK // 32, WHOLE)
            for k in range(0, D, BK):
                w = scaled(w_desc.load([expert, m, k]).reshape(BM, BK), bytes, BM, BK)
                bytes = scales(row_ptr, (k + BK) // 32, limit, BK // 32, WHOLE)
                x = tl.load(x_row + k, mask=live[None, :] & (k + d < D)[:, None], other=0.0)
                acc = tl.dot(w, wide(x), acc)
            y_at = y_ptr + p.to(tl.int64)[None, :] * N + n[:, None]
            tl.store(y_at, result(acc, BF16), mask=live[None, :] & (n < N)[:, None])


def decode(
    x_MD: torch.Tensor,
    ids_P: torch.Tensor,
    w_END: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    tile: Tile,
) -> torch.Tensor:
    """[P, N] of `weights_by_pairs`: x bf16, w E4M3."""
    pairs, (experts, outputs, inputs) = len(ids_P), w_END.shape
    y_PN = x_MD.new_empty(pairs, outputs, dtype=dtype)
    weights_by_pairs[(triton.cdiv(outputs, tile.m), min(pairs, experts))](
        x_MD, ids_P, described(w_END, 1, tile.m, tile.k), w_scale, y_PN,
        pairs, outputs, inputs, pairs // len(x_MD), inputs // 32,
        BM=tile.m, BN=tile.n, BK=tile.k, PAIRS=triton.next_power_of_2(pairs),
        BF16=dtype == torch.bfloat16, WHOLE=inputs % tile.k == 0,
        BY_EXPERT=experts <= pairs, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y_PN
