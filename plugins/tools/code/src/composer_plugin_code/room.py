"""How results that are lists of lines are cut: after a whole line, with a line that says what is left out.

The toolbox cuts any result at `limits.output_chars`, in its middle, and cannot say which lines are gone from there. So
tools that show lines keep within that limit themselves, and what they say of the rest keeps within it too: an offset to
read on from is true. Where the limit leaves no room for a cut line and what is said (some 120 characters), the toolbox
cuts after all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from composer_plugin_code.paths import shortened


@frozen
class Line:
    """A line of a result."""

    text: str
    most: int
    """Characters of the text that are shown."""
    before: str = ""
    """What stands before the text, such as its number, and is never cut."""

    @property
    def shown(self) -> str:
        return self.before + shortened(self.text, self.most)

    def within(self, room: int) -> str:
        """The line as it is shown, in no more characters than there is room for."""
        if len(self.shown) <= room:
            return self.shown
        mark = shortened(self.text, 0)
        return self.before + shortened(self.text, max(0, room - len(self.before) - len(mark)))


def left_of(total: int, what: str = "") -> Callable[[int], str]:
    """Says how many of them are left when so many are shown."""
    return lambda shown: f"... {total - shown} more{what}" if shown < total else ""


def fitted(lines: Sequence[Line], room: int, more: Callable[[int], str]) -> tuple[str, int]:
    """As many of the first lines as fit, with what is said of the others; the text, and how many lines it shows.

    At least one is shown, itself cut where it must be. `room` is in characters; `more` is given the number of lines
    shown, and says nothing ("") where none are left.
    """

    def tail(count: int) -> str:
        said = more(count)
        return f"\n{said}" if said else ""

    if not lines:
        return more(0), 0
    shown: list[str] = []
    used, count = -1, 0
    for line in lines:
        shown.append(line.within(room))
        used += len(shown[-1]) + 1
        if used > room:
            break
        if used + len(tail(len(shown))) <= room:
            count = len(shown)
    if not count:
        shown, count = [lines[0].within(room - len(tail(1)))], 1
    return "\n".join(shown[:count]) + tail(count), count
