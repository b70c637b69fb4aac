"""Frames between the provider and its keeper: two lengths, a JSON header, and raw bytes.

Header and bytes are data and never code; what a command printed travels only in the bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

_LENGTHS = struct.Struct("!II")
MAX_FRAME = 1 << 30


def encode(header: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(data)) + text + data


class Decoder:
    """Feed bytes in as they come, take whole frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            text, raw = _LENGTHS.unpack_from(self._buffer)
            if text + raw > MAX_FRAME:
                raise ValueError(f"a frame of {text + raw} bytes is larger than {MAX_FRAME}")
            end = _LENGTHS.size + text + raw
            if len(self._buffer) < end:
                return
            header = json.loads(bytes(self._buffer[_LENGTHS.size : _LENGTHS.size + text]))
            body = bytes(self._buffer[_LENGTHS.size + text : end])
            del self._buffer[:end]
            yield header, body


def pack_files(files: list[tuple[str, bytes, bool]]) -> tuple[list[list[Any]], bytes]:
    """Files as rows [path, length, executable] beside their bytes in one piece."""
    return [[path, len(data), mode] for path, data, mode in files], b"".join(data for _, data, _ in files)


def unpack_files(rows: list[list[Any]], data: bytes) -> list[tuple[str, bytes, bool]]:
    found, start = [], 0
    for path, length, mode in rows:
        found.append((path, data[start : start + length], mode))
        start += length
    return found
