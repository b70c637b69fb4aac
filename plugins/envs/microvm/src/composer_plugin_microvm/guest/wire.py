"""Frames between host and agent: two lengths, a JSON header, raw bytes. Small, so that no peer can make the other wait.

A long body travels in several frames of one number; all but the last have `more`. The host takes whatever a guest may
send, so a decoder refuses what is larger than a frame may be before it has read it, and a header that is no table with
a number. How much of all frames of one number is kept, is for whoever asked to say (`channel`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from composer_envkit.agent import frames
from composer_envkit.agent.frames import Frame, Malformed

MAX_HEADER = 1 << 20
MAX_BODY = 1 << 18


def encode(header: dict[str, Any], data: bytes = b"") -> bytes:
    """One frame, or several where the body is long."""
    if len(data) <= MAX_BODY:
        return frames.encode(header, data)
    number = {"n": header["n"], "more": True}
    cuts = range(0, len(data), MAX_BODY)
    return b"".join(frames.encode(header if at == cuts[-1] else number, data[at : at + MAX_BODY]) for at in cuts)


class Decoder:
    """Feed bytes in as they come, take whole frames out; holds at most one frame and what was fed last."""

    def __init__(self) -> None:
        self._frames = frames.Decoder(MAX_HEADER, MAX_BODY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises Malformed."""
        for header, body in self._frames.feed(data):
            if type(header.get("n")) is not int:
                raise Malformed("a header without a number")
            yield header, body
