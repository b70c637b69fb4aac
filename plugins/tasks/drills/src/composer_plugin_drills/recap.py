"""How the demonstrator sums up, and finds its place in a window that begins with what it said.

Its window is all it goes by, as for the policy that imitates it: the summary there names the turns before, and later
ones stand in the ids. What was read is not in a summary, so a file is read again before it is quoted.
"""

from __future__ import annotations

from collections.abc import Sequence

from composer_core.types import ParsedTurn
from composer_plugin_drills.config import EDITS


def told(script: Sequence[ParsedTurn], done: int) -> str:
    """What was done and what comes next, in the names of tools."""
    names = [step.calls[0].name for step in script]
    return f"did {', '.join(names[:done]) or 'nothing'}; next {names[min(done, len(names) - 1)]}."


def done_in(script: Sequence[ParsedTurn], rendered: Sequence[list[int]], ids: Sequence[int], window: str) -> int:
    """Turns of the script that are done as far as a window tells; `window` is the text of `ids`."""
    done = _summed_up(script, window)
    at = 0
    for turn in rendered[done:]:
        at = _behind(turn, ids, at)
        if at < 0:
            break
        done += 1
    return done


def _summed_up(script: Sequence[ParsedTurn], window: str) -> int:
    """Turns that the window's summary names, but for a look at what is edited next; 0 without a summary."""
    done = next((count for count in range(len(script)) if told(script, count) in window), 0)
    return done - 1 if done and script[done].calls[0].name in EDITS else done


def _behind(part: Sequence[int], ids: Sequence[int], start: int) -> int:
    """Where the first `part` from `start` on ends, or -1."""
    size, wanted = len(part), list(part)
    found = (at for at in range(start, len(ids) - size + 1) if list(ids[at : at + size]) == wanted)
    return next(found, -1 - size) + size
