"""Figures in plain SVG: effects with their intervals, points with a line through them, and both over one frame."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from attrs import frozen

from study.effects import Found

LEFT, WIDTH, RIGHT, ROW, TOP = 350, 260, 270, 30, 12
STYLE = """text{font:13px system-ui,sans-serif;fill:#222}.line{stroke:#222;fill:none}.grid{stroke:#8885;fill:none}
.dot{fill:#fff;stroke:#222}.held{fill:#4c78a8}.not{fill:#e45756}.told{fill:#888}.a{fill:#4c78a8;stroke:#4c78a8}
.b{fill:#e45756;stroke:#e45756}.c{fill:#72b7b2;stroke:#72b7b2}.fit{fill:none;stroke-width:1.5}
@media(prefers-color-scheme:dark){text{fill:#ddd}.line,.dot{stroke:#ddd}.dot{fill:#222}}"""
CLASSES = "abc"
KINDS = {"holds": "held", "fails": "not", "open": "not", "": "told"}
"""Verdict -> class of its dot."""
KEY = "Upright: 0, each row in its own scale. Blue: holds, red: does not, grey: nothing is claimed. Rings: seeds."


def effects(found: Sequence[Found], title: str) -> str:
    """A row for each effect, in its own scale around 0: the interval, the mean, and each seed as a ring."""
    height = TOP + ROW * len(found) + 22
    parts = _open(LEFT + WIDTH + RIGHT, height, title)
    middle = LEFT + WIDTH / 2
    parts.append(f'<path class="grid" d="M{middle} {TOP - 6}V{height - 20}"/>')
    parts.append(f'<text x="{middle}" y="{height - 5}" text-anchor="middle">{KEY}</text>')
    for number, one in enumerate(found):
        parts += _effect(one, TOP + ROW * number + ROW // 2)
    return "\n".join([*parts, "</svg>", ""])


def _effect(one: Found, y: int) -> list[str]:
    seeds = [span.value for span in one.seeds.values()]
    most = max(map(abs, (one.all.low, one.all.high, one.all.value, *seeds))) or 1.0

    def x(value: float) -> float:
        return round(LEFT + WIDTH / 2 * (1 + value / most * 0.95), 1)

    rings = [f'<circle class="dot" cx="{x(value)}" cy="{y}" r="3"/>' for value in seeds]
    return [
        f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(one.title)}</text>',
        f'<path class="line" d="M{x(one.all.low)} {y}H{x(one.all.high)}"/>',
        f'<circle class="{KINDS[one.verdict]}" cx="{x(one.all.value)}" cy="{y}" r="6"/>',
        *rings,
        f'<text x="{LEFT + WIDTH + 12}" y="{y + 4}">{one.all}</text>',
    ]


@frozen
class Series:
    """Points of one sort, and the line through them."""

    title: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str] = ()
    """Above each point; none where there are none."""
    line: tuple[float, float] | None = None
    """(slope, value where x is 0); none is drawn without."""


def frame(series: Sequence[Series], title: str, x_name: str, y_name: str) -> str:
    """Up to three series over one pair of axes, with room around what they hold, which may be nothing."""
    left, width, top, height = 60, 440, 34, 260
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    (x_low, x_high), (y_low, y_high) = _around(xs), _around([*ys, 0.0])
    y_low = 0.0 if min(ys, default=0.0) >= 0 else y_low

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + width * (x - x_low) / (x_high - x_low)
        return round(across, 1), round(top + height * (y_high - y) / (y_high - y_low), 1)

    parts = _open(left + width + 190, top + height + 44, title)
    parts.append(f'<path class="grid" d="M{left} {top}V{top + height}H{left + width}"/>')
    for share in (0.0, 0.5, 1.0):
        x, y = x_low + share * (x_high - x_low), y_low + share * (y_high - y_low)
        across, down = place(x, y)
        parts.append(f'<text x="{across}" y="{top + height + 16}" text-anchor="middle">{x:.3g}</text>')
        parts.append(f'<text x="{left - 6}" y="{down + 4}" text-anchor="end">{y:.2g}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 36}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(f'<text x="{left}" y="{top - 16}">{escape(y_name)}</text>')
    for number, one in enumerate(series):
        kind = CLASSES[number]
        for at, point in enumerate(one.points):
            across, down = place(*point)
            parts.append(f'<circle class="{kind}" cx="{across}" cy="{down}" r="4"/>')
            if one.labels:
                parts.append(
                    f'<text x="{across}" y="{down - 8:.1f}" text-anchor="middle">{escape(one.labels[at])}</text>'
                )
        if one.line and (inside := _inside(one.line, (x_low, x_high), (y_low, y_high))):
            ends = [place(x, one.line[0] * x + one.line[1]) for x in inside]
            parts.append(f'<path class="fit {kind}" d="M{ends[0][0]} {ends[0][1]}L{ends[1][0]} {ends[1][1]}"/>')
        y_key = top + 14 + 20 * number
        parts.append(f'<circle class="{kind}" cx="{left + width + 16}" cy="{y_key - 4}" r="4"/>')
        parts.append(f'<text x="{left + width + 26}" y="{y_key}">{escape(one.title)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _inside(line: tuple[float, float], xs: tuple[float, float], ys: tuple[float, float]) -> tuple[float, float] | None:
    """Where a line enters the frame and leaves it; None if it never does."""
    slope, base = line
    crossed = sorted((y - base) / slope for y in ys) if slope else xs
    low, high = max(xs[0], crossed[0]), min(xs[1], crossed[1])
    return (low, high) if low < high and (slope or ys[0] <= base <= ys[1]) else None


def _around(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


def _open(width: float, height: float, title: str) -> list[str]:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    return [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
