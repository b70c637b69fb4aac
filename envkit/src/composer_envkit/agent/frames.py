"""Frames between an agent and its host: two lengths, a JSON header, raw bytes.

Either end takes the other's frames as data that may be hostile: lengths are bounded before anything is kept, a header
must be a JSON object. What commands print travels only in the bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

_LENGTHS = struct.Struct("!II")
MAX_HEADER = 64 << 20
MAX_DATA = 1 << 30
Frame = tuple[dict[str, Any], bytes]


class Malformed(ValueError):
    """The other end does not speak this protocol (any more)."""


def encode(header: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(data)) + text + data


class Decoder:
    """Feed bytes in as they come, take whole frames out."""

    def __init__(self, max_header: int = MAX_HEADER, max_data: int = MAX_DATA) -> None:
        self.max_header, self.max_data = max_header, max_data
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises Malformed at the first frame that is none."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            text, raw = _LENGTHS.unpack_from(self._buffer)
            if text > self.max_header or raw > self.max_data:
                raise Malformed(f"a frame of {text} and {raw} bytes is too large")
            end = _LENGTHS.size + text + raw
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:
                head, body = bytes(view[_LENGTHS.size : _LENGTHS.size + text]), bytes(view[_LENGTHS.size + text : end])
            del self._buffer[:end]
            yield _header(head), body


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise Malformed("a header is no JSON object")
    return header
