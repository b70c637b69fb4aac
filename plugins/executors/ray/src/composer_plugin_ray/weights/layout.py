"""A safetensors file by its bytes: the header as it is, and the words of each tensor, mapped and not read.

numpy has no bfloat16, and a difference needs none: a tensor is unsigned words of its element's size. The words are
views of a mapped file, so what is held in memory is what is being looked at.
Reference: https://github.com/huggingface/safetensors (format section).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from attrs import frozen

from composer_core.errors import StoreError
from composer_plugin_ray.weights.codec import Words

PIECE_WORDS = 1 << 20
"""Most words of one piece: a few MB of memory at work, and enough to share out among threads."""
HEADER_BYTES = 100 << 20
"""The most that the format allows."""
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
         "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8}  # fmt: skip


@frozen(eq=False)
class Layout:
    """One file, mapped."""

    header: bytes
    """Everything before the tensors, its own length included."""
    data: npt.NDArray[np.uint8]
    """The whole file."""
    pieces: tuple[tuple[int, int, int], ...]
    """(offset, bytes, bytes of a word) of pieces that cover what follows the header, in order."""

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def words(self) -> Iterator[Words]:
        """Each piece as words."""
        for offset, length, size in self.pieces:
            yield self.data[offset : offset + length].view(f"u{size}")


def open_layout(path: Path) -> Layout:
    """Map a file.

    Raises:
        StoreError: it is not a whole safetensors file.
    """
    try:
        data = np.memmap(path, np.uint8, "r")
        (length,) = struct.unpack("<Q", data[:8].tobytes())
        if length > min(HEADER_BYTES, len(data)):
            raise ValueError(f"a header of {length} bytes")
        header = data[: 8 + length].tobytes()
        return Layout(header, data, tuple(_pieces(json.loads(header[8:]), len(header), len(data))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise StoreError("weights are not a whole safetensors file", where=str(path), found=str(error)) from error


def _pieces(header: dict[str, dict[str, object]], begin: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Raises ValueError where tensors leave a gap, overlap, or end before or after the file does."""
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    spans = sorted((*entry["data_offsets"], str(entry["dtype"])) for entry in tensors)  # type: ignore[misc]
    at = begin
    for first, last, dtype in spans:
        if begin + first != at or last < first or begin + last > size:
            raise ValueError(f"tensors do not lie one after the other at byte {at}")
        word = _word(dtype, at, last - first)
        for offset in range(at, begin + last, PIECE_WORDS * word):
            yield offset, min(PIECE_WORDS * word, begin + last - offset), word
        at = begin + last
    if at != size:
        raise ValueError(f"{size - at} bytes after the last tensor")


def _word(dtype: str, offset: int, length: int) -> int:
    """Bytes of a word of this type; 1 where it is unknown or not aligned, which is right but compresses less."""
    size = SIZES.get(dtype, 1)
    return size if offset % size == 0 and length % size == 0 else 1
