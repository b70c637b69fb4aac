"""Columns of numbers as plain bytes, and the file layout that holds a trace.

A column is a dtype name, a shape and little-endian bytes, so core moves token ids, log-probabilities and expert ids
without numpy or torch, and a process boundary costs one copy. A file of columns is in the safetensors layout
(8-byte little-endian header length, JSON header, raw bytes), so `safetensors` opens our traces.
Reference: https://github.com/huggingface/safetensors (format section).

No arithmetic here: code that computes on columns turns them into tensors (`composer_core.tensors`).
"""

from __future__ import annotations

import json
import math
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from composer_core.errors import StoreError

__all__ = [
    "DTYPES",
    "Column",
    "pack",
    "unpack",
]

DTYPES = {"U8": "B", "U16": "H", "I32": "i", "I64": "q", "F32": "f", "F64": "d"}


@frozen
class Column:
    """`data` holds `prod(shape)` little-endian values of `dtype` (a safetensors dtype name), row-major."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, dtype: str, values: Iterable[int] | Iterable[float]) -> Column:
        """A column of one axis."""
        packed = array(DTYPES[dtype], values)
        if sys.byteorder == "big":
            packed.byteswap()
        return cls(dtype, (len(packed),), packed.tobytes())

    def values(self) -> array:  # type: ignore[type-arg]
        """The values, flat, as a stdlib array."""
        unpacked = array(DTYPES[self.dtype])
        unpacked.frombytes(self.data)
        if sys.byteorder == "big":
            unpacked.byteswap()
        return unpacked

    def __len__(self) -> int:
        return self.shape[0]


def pack(columns: Mapping[str, Column], metadata: Mapping[str, str]) -> bytes:
    """Columns and string metadata as one safetensors file."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, column in columns.items():
        end = offset + len(column.data)
        header[name] = {"dtype": column.dtype, "shape": list(column.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(column.data for column in columns.values())])


def unpack(blob: bytes) -> tuple[dict[str, Column], dict[str, str]]:
    """The inverse of `pack`.

    Raises:
        StoreError: the bytes are not a whole file in this layout.
    """
    try:
        (length,) = struct.unpack_from("<Q", blob)
        header = json.loads(blob[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        columns = {name: _column(blob, 8 + length, entry) for name, entry in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"not a whole safetensors file: {error}") from error
    return columns, metadata


def _column(blob: bytes, base: int, entry: Any) -> Column:
    begin, end = entry["data_offsets"]
    dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
    data = blob[base + begin : base + end]
    if len(data) != math.prod(shape) * array(DTYPES[dtype]).itemsize:
        raise ValueError(f"column of {dtype}{list(shape)} has {len(data)} bytes")
    return Column(dtype, shape, data)
