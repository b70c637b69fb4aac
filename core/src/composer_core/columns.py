"""Columns of numbers as plain bytes, and the file layout that holds a trace.

A column is a dtype name, a shape and little-endian bytes, so core moves token ids, log-probabilities and expert ids
without numpy or torch, and a process boundary costs one copy. A file of columns is in the safetensors layout
(8-byte little-endian header length, JSON header, raw bytes), so `safetensors` opens our traces.
Reference: https://github.com/huggingface/safetensors (format section).

No arithmetic here: code that computes on columns turns them into tensors (`composer_core.tensors`).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from composer_core.errors import StoreError

__all__ = [
    "DTYPES",
    "Blob",
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

    def part(self, start: int, stop: int) -> Column:
        """Entries [start, stop) of the first axis."""
        size = len(self.data) // max(1, len(self))
        return Column(self.dtype, (stop - start, *self.shape[1:]), self.data[start * size : stop * size])

    @classmethod
    def joined(cls, parts: Sequence[Column]) -> Column:
        """One behind the other; all but the first axis are those of the first part."""
        size, data = sum(map(len, parts)), b"".join(part.data for part in parts)
        return parts[0] if len(parts) == 1 else cls(parts[0].dtype, (size, *parts[0].shape[1:]), data)


@frozen
class Blob:
    """A column that lies in the run's store, apart from what names it, and is read only where it is used."""

    uri: str
    sha256: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def put(cls, store: Any, key: str, column: Column) -> Blob:
        return cls(store.put(key, column.data), hashlib.sha256(column.data).hexdigest(), column.dtype, column.shape)

    def get(self, store: Any) -> Column:
        """Raises StoreError: it is missing, or its bytes are not those that were put."""
        data: bytes = store.get(self.uri)
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise StoreError("a blob is damaged", where=self.uri, expected=self.sha256, found=found)
        return Column(self.dtype, self.shape, data)


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
