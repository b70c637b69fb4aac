"""Frames between host and agent: two lengths, a JSON header, raw bytes. Small, so that no peer can make the other wait.

A long body travels in several frames of one number; all but the last have `more`. The host takes whatever a guest may
send, so a decoder refuses what is larger than a frame may be before it has read it, and a header that is no table with
a number. How much of all frames of one number is kept, is for whoever asked to say (`channel`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

LENGTHS = struct.Struct("!II")
MAX_HEADER = 1 << 20
MAX_BODY = 1 << 18
Frame = tuple[dict[str, Any], bytes]


class BadFrame(ValueError):
    """What came is no frame; nothing after it can be understood."""


def encode(header: dict[str, Any], data: bytes = b"") -> bytes:
    """One frame, or several where the body is long."""
    if len(data) <= MAX_BODY:
        return _frame(header, data)
    number = {"n": header["n"], "more": True}
    cuts = range(0, len(data), MAX_BODY)
    return b"".join(_frame(header if at == cuts[-1] else number, data[at : at + MAX_BODY]) for at in cuts)


def _frame(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return LENGTHS.pack(len(text), len(data)) + text + data


class Decoder:
    """Feed bytes in as they come, take whole frames out; holds at most one frame and what was fed last."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises BadFrame."""
        self._buffer += data
        while len(self._buffer) >= LENGTHS.size:
            text, raw = LENGTHS.unpack_from(self._buffer)
            if text > MAX_HEADER or raw > MAX_BODY:
                raise BadFrame(f"a frame of {text} + {raw} bytes; at most {MAX_HEADER} + {MAX_BODY} are taken")
            end = LENGTHS.size + text + raw
            if len(self._buffer) < end:
                return
            header = _header(bytes(self._buffer[LENGTHS.size : LENGTHS.size + text]))
            body = bytes(self._buffer[LENGTHS.size + text : end])
            del self._buffer[:end]
            yield header, body


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a header that is no JSON: {error}") from error
    if not isinstance(header, dict) or type(header.get("n")) is not int:
        raise BadFrame("a header without a number")
    return header
