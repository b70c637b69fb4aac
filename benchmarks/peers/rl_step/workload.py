"""What both sides of the step benchmark play: one description, importable in either environment; stdlib only.

A policy with random weights never writes a valid call, so what is scripted is *when a turn ends and what it asks for*,
never which ids are sampled: every id but a closing tag comes from a forward pass and a draw. A turn's length is drawn
once for (task, member, turn) and is a function of nothing else, so every step of both sides plays the same lengths.
Length also says what a turn was: an even one is a call of the tool, an odd one the last words of the episode. Each
side parses the sampled ids with its own parser, and only then puts the scripted call in place of what was found.

The shape is that of the main job's reinforcement learning (examples/quickstart, 800 episodes of its second seed): most
episodes have four turns, the others five or six; turns are calls of 4 to 18 ids, but for one edit of 56 to 136 in the
middle; an episode samples 135 ids. Results are shorter after an edit than after a look.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

TURNS = (4,) * 14 + (5,) * 4 + (6,) * 2
CALLS = (4, 8, 12, 12, 12, 16, 18, 18, 18)
"""Lengths of ordinary calls, all even."""
EDITS = range(56, 138, 2)
LAST = (5, 5, 13)
"""Lengths of the last turn, all odd."""
FOLDER, FILE = "geometry", "geometry/ranges.py"
SOURCE = '''def clamp(value, low, high):
    """The value, moved into the range from low to high."""
    if low > high:
        low, high = high, low
    return max(low, min(value, high))
'''


@dataclass(frozen=True)
class Workload:
    """One step: `groups` tasks, `group_size` episodes of each."""

    groups: int = 8
    group_size: int = 8

    @property
    def episodes(self) -> int:
        return self.groups * self.group_size

    def turn_lengths(self, task: int, member: int) -> list[int]:
        """Sampled ids of each turn: even ones, and an odd one to end with."""
        source = random.Random(f"{task}/{member}")
        lengths = [source.choice(CALLS) for _ in range(source.choice(TURNS) - 1)]
        lengths[source.choice((1, 1, 2))] = source.choice(EDITS)
        return [*lengths, source.choice(LAST)]

    def prompt(self, task: int) -> str:
        """The user's words of one task; equally long for all of them up to a digit."""
        return f"Task {task}: clamp() in {FILE} leaves its range when low and high are swapped. Find out why, mend it."

    def reward(self, member: int) -> float:
        """Spread evenly over [0, 1]: in a group of even size no advantage is zero, so every episode is trained."""
        return member / (self.group_size - 1)


def is_call(length: int) -> bool:
    """Whether a turn of so many sampled ids called the tool."""
    return length % 2 == 0


def arguments(length: int) -> dict[str, str]:
    """What such a turn asked for."""
    return {"path": FOLDER if length in EDITS else FILE}


def result(path: str) -> str:
    """What the tool answers."""
    return SOURCE if path == FILE else "ranges.py, 1 file changed"
