"""Small pieces of text for people: durations, and words of a model or a tool made safe for a terminal."""

from __future__ import annotations

import math
import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


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
