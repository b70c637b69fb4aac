"""Columns to tensors and back, without copying more than once."""

from __future__ import annotations

import torch

from composer_core.columns import Column

TORCH_DTYPES = {
    "U8": torch.uint8,
    "U16": torch.uint16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F32": torch.float32,
    "F64": torch.float64,
}
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def to_tensor(column: Column) -> torch.Tensor:
    """A new tensor of the column's dtype and shape that shares no memory with it."""
    if not column.data:
        return torch.empty(column.shape, dtype=TORCH_DTYPES[column.dtype])
    flat = torch.frombuffer(bytearray(column.data), dtype=TORCH_DTYPES[column.dtype])
    return flat.reshape(column.shape)


def to_column(tensor: torch.Tensor) -> Column:
    """A column with the tensor's values; the tensor may live on any device."""
    host = tensor.detach().cpu().contiguous()
    return Column(NAMES[host.dtype], tuple(host.shape), host.numpy().tobytes())
