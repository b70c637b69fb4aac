"""Rows of tokens in the order of a plan, padding zero: in MXFP8 bytes, so that each token is quantized once and not for
each of its experts anew. The bytes are those of quantizing gathered rows, since a block never leaves its row.

Legend: see `ops`.
"""

from __future__ import annotations

import torch

from composer_plugin_mxfp8.ops import Blocks, Plan


def gather(x_ND: torch.Tensor, source_R: torch.Tensor) -> torch.Tensor:
    """[R, D]: row `source_R` of x, or zeros where it is -1."""
    padded = torch.cat([x_ND, x_ND.new_zeros(1, x_ND.shape[1])])
    return padded.index_select(0, torch.where(source_R < 0, len(x_ND), source_R))


def gather_rows(x: Blocks, plan: Plan) -> Blocks:
    """MXFP8 rows of tokens [N, D] to those of padded rows [R, D]."""
    source_R = plan.source
    narrow = x.data.dtype.itemsize == 1
    data = gather(x.data.view(torch.uint8) if narrow else x.data, source_R)
    return Blocks(data.view(x.data.dtype), gather(x.scale, source_R))
