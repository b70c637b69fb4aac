"""The figure of docs/long_horizon.md: solve rates with their intervals, each seed as a dot, in plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from attrs import frozen

LEFT, WIDTH, RIGHT, ROW, TOP = 195, 350, 170, 34, 14
STYLE = """text{font:13px system-ui,sans-serif;fill:#222}.bar{fill:#4c78a8}.ours{fill:#e45756}.line{stroke:#222}
.grid{stroke:#8885}.dot{fill:#fff;stroke:#222}
@media(prefers-color-scheme:dark){text{fill:#ddd}.line,.dot{stroke:#ddd}.dot{fill:#222}}"""


@frozen
class Bar:
    """One arm."""

    title: str
    value: float
    low: float
    high: float
    seeds: Sequence[float]
    note: str
    """What stands at the right end."""
    ours: bool = False


def svg(bars: Sequence[Bar]) -> str:
    """The whole figure; values lie in [0, 1]."""
    height = TOP + ROW * len(bars) + 26
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" role="img">']
    parts += ["<title>Share of held-out books solved, by arm</title>", f"<style>{STYLE}</style>"]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<path class="grid" d="M{_x(tick)} {TOP - 6}V{height - 24}"/>')
        parts.append(f'<text x="{_x(tick)}" y="{height - 8}" text-anchor="middle">{tick:g}</text>')
    for number, bar in enumerate(bars):
        parts += _row(bar, TOP + ROW * number)
    return "\n".join([*parts, "</svg>", ""])


def _row(bar: Bar, top: int) -> list[str]:
    middle = top + ROW // 2 - 4
    kind = "ours" if bar.ours else "bar"
    dots = [f'<circle class="dot" cx="{_x(seed)}" cy="{middle}" r="3"/>' for seed in bar.seeds]
    return [
        f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{escape(bar.title)}</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{top + 2}" width="{_x(bar.value) - LEFT:.1f}" height="{ROW - 12}"/>',
        f'<path class="line" d="M{_x(bar.low)} {middle}H{_x(bar.high)}"/>',
        *dots,
        f'<text x="{LEFT + WIDTH + 12}" y="{middle + 4}">{escape(bar.note)}</text>',
    ]


def _x(value: float) -> float:
    return round(LEFT + WIDTH * value, 1)
