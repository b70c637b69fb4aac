"""Small pieces of text: durations, sizes, words of a model or a tool made safe for a terminal, long texts cut."""

from __future__ import annotations

import math
import re

__all__ = [
    "clip",
    "clock",
    "printable",
    "size",
]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_CUT = "\n... {} characters cut ...\n"


def printable(text: str) -> str:
    """`text` with control characters, direction overrides and lone surrogates shown as escapes.

    Whoever wrote it cannot move the cursor, color the page or break the encoding; tabs and line ends stay.
    """
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text.replace("\r\n", "\n"))


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    whole = max(0, round(seconds)) if math.isfinite(seconds) else 0
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def size(count: int) -> str:
    """Bytes with three digits: 512 MiB, 1.25 GiB."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{count / (1 << power):.3g} {unit}" if count < 1000 << power else f"{count >> power:,} {unit}"
    return f"{count} B"


def clip(text: str, limit_chars: int) -> tuple[str, int]:
    """Head and tail of a text within a limit, with a line between them that says how many characters are left out.

    Returns the text and that number; a limit too small for the line itself gives just the line.
    """
    if len(text) <= limit_chars:
        return text, 0
    room = limit_chars - len(_CUT.format(len(text)))
    half = max(0, room // 2)
    left_out = len(text) - 2 * half
    return f"{text[:half]}{_CUT.format(left_out)}{text[len(text) - half :]}", left_out
