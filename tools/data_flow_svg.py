"""The picture of `tools/data_flow.py`: boxes for processes and places, arrows with messages and bytes per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, BOX_WIDTH, BOX_HEIGHT = 1040, 570, 210, 76
LEFT, MIDDLE, RIGHT = 30, 415, 800
TOP, CENTER, BOTTOM = 80, 270, 460
Label = tuple[str, float, float]


class Arrow(NamedTuple):
    """From one point to another, with the place of its label's middle."""

    start: tuple[int, int]
    end: tuple[int, int]
    label: tuple[int, int]


ARROWS = {
    "shown": Arrow((240, 105), (800, 105), (520, 85)),
    "sampled": Arrow((800, 135), (240, 135), (520, 158)),
    "calls": Arrow((100, 156), (100, 270), (136, 213)),
    "episodes": Arrow((415, 300), (240, 150), (342, 236)),
    "traces": Arrow((200, 156), (425, 460), (352, 392)),
    "read": Arrow((500, 460), (500, 346), (520, 400)),
    "batch": Arrow((625, 336), (800, 470), (720, 400)),
    "weights": Arrow((800, 498), (625, 498), (712, 526)),
    "differences": Arrow((625, 300), (800, 300), (712, 280)),
    "loaded": Arrow((905, 270), (905, 156), (905, 213)),
}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2430; text-anchor: middle }
.title { font-size: 16px; font-weight: 600 } .name { font-size: 14px; font-weight: 600 }
.small { font-size: 11.5px; fill: #555d6e }
.box { fill: #eef1fb; stroke: #4051b5; stroke-width: 1.5 } .place { fill: #f6f3ea; stroke: #9a7b1f }
line { stroke: #4a5163; stroke-width: 1.5; marker-end: url(#head) }
.halo { fill: #ffffff; opacity: 0.9 }
"""


def drawn(name: str, steps: int, labels: Mapping[str, Label], places: Sequence[str], stats: Mapping[str, float]) -> str:
    """`labels` are what, messages and bytes by arrow; `places` the processes' names."""
    boxes = [
        (LEFT, TOP, "box", "worker", _named(places, "worker")),
        (RIGHT, TOP, "box", "sampler replica", _named(places, "replica")),
        (LEFT, CENTER, "place", "sandboxes", f"{stats['sandboxes_created']:.0f} made since the last start"),
        (MIDDLE, CENTER, "box", "controller", "ledger, commits, events"),
        (RIGHT, CENTER, "place", "store of weights", "a folder"),
        (MIDDLE, BOTTOM, "place", "run folder", "traces, weights, checkpoints"),
        (RIGHT, BOTTOM, "box", "trainer", _named(places, "rank")),
    ]
    told = {**labels, "loaded": ("weights loaded", *labels["differences"][1:])}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>What moved in {escape(name)} in one step of reinforcement learning</title>",
        f'<style>{STYLE}</style><defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="#4a5163"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        _text(
            WIDTH // 2, 36, f"{name}: messages · bytes in one step of reinforcement learning, mean of {steps}", "title"
        ),
        *(_line(ARROWS[key], key) for key in told),
        *(_box(*box) for box in boxes),
        *(_label(ARROWS[key], *label) for key, label in told.items()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _named(places: Sequence[str], sort: str) -> str:
    return ", ".join(place for place in places if place.startswith(sort)) or "none at the end"


def _box(x: int, y: int, look: str, name: str, small: str) -> str:
    middle = x + BOX_WIDTH // 2
    shape = f'<rect class="box {look}" x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
    return shape + _text(middle, y + 34, name, "name") + _text(middle, y + 54, small, "small")


def _line(arrow: Arrow, key: str) -> str:
    (x1, y1), (x2, y2) = arrow.start, arrow.end
    both = ' marker-start="url(#head)"' if key in ("calls", "episodes") else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"{both}/>'


def _label(arrow: Arrow, what: str, messages: float, size_bytes: float) -> str:
    x, y = arrow.label
    figures = f"{messages:,.4g} · {size(size_bytes)}"
    width = 7 * max(len(what), len(figures)) + 8
    halo = f'<rect class="halo" x="{x - width // 2}" y="{y - 16}" width="{width}" height="34" rx="3"/>'
    return halo + _text(x, y - 3, what, "small") + _text(x, y + 13, figures, "")


def _text(x: int, y: int, text: str, look: str) -> str:
    return f'<text x="{x}" y="{y}" class="{look}">{escape(text)}</text>'


def size(count: float) -> str:
    """Bytes in the unit that leaves three digits or so."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
