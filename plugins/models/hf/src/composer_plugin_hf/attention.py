"""Attention over slots, installed into transformers' attention interface under the name `composer`.

Legend: B rows, H query heads, G key/value heads, Q query heads per key/value head, T new tokens, S keys, W head width.

Three paths, one meaning. Without a mask (training, no cache) plain causal SDPA: rows are right-padded, so no real token
sees padding. With a mask and one new token, two batched products over grouped heads, which read the cache in place.
With a mask and more, masked SDPA. `exact=True` (RL.md section 5) runs the one-token path for each new token, over a
cache window of fixed length, so a token's result depends neither on the batch nor on where its chunk was cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "composer"


def _one_token(
    query_BH1W: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """[B, H, 1, W] from one query per row; key and value are [B, G, S, W]."""
    rows, heads, _, _ = query_BH1W.shape
    groups = key.shape[1]
    query_BGQW = query_BH1W.reshape(rows, groups, heads // groups, -1) * scaling
    scores_BGQS = torch.matmul(query_BGQW, key.transpose(2, 3))
    weights_BGQS = (scores_BGQS + mask).softmax(-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights_BGQS, value).reshape(rows, heads, 1, -1)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The signature transformers calls; returns [B, T, H, W]."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    tokens = query.shape[2]
    if attention_mask is not None and (tokens == 1 or getattr(module, "composer_exact", False)):
        steps = [
            _one_token(query[:, :, t : t + 1], key, value, attention_mask[:, :, t : t + 1], scale)
            for t in range(tokens)
        ]
        out_BHTW = steps[0] if tokens == 1 else torch.cat(steps, 2)
    else:
        out_BHTW = scaled_dot_product_attention(
            query,
            key.contiguous(),  # a cache may hold keys transposed, which only the slow kernel reads
            value,
            attn_mask=attention_mask,
            dropout_p=dropout,
            is_causal=attention_mask is None,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    return out_BHTW.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
