"""What is broken, what repairs it, and the questions that tell the two apart."""

from attrs import frozen


@frozen
class Bug:
    """A function of one file, `NAME.py`, that is named like it."""

    name: str
    split: str
    prompt: str
    """All that the agent is told; one example at most, and none of the questions."""
    broken: str
    fixed: str
    questions: dict[str, str]
    """Expression over the function -> the text (`repr`) of its value once repaired. The agent never sees them."""


CLAMP = "def clamp(value, low, high):\n    return max(low, {}(value, high))\n"
CHUNKS = "def chunks(items, size):\n    return [items[at : at + size] for at in range(0, {}, size)]\n"
INITIALS = 'def initials(name):\n    return "".join(word[0].upper() for word in name.split({}))\n'
MEDIAN = """def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[{}] + ordered[middle]) / 2
"""

BUGS = (
    Bug(
        name="clamp",
        split="train",
        prompt="clamp(12, 0, 10) gives 12, it should give 10. Repair clamp.py.",
        broken=CLAMP.format("max"),
        fixed=CLAMP.format("min"),
        questions={"clamp(5, 0, 9)": "5", "clamp(-3, 0, 9)": "0", "clamp(70, -7, 9)": "9"},
    ),
    Bug(
        name="chunks",
        split="train",
        prompt="chunks([1, 2, 3], 2) loses the last element. Repair chunks.py.",
        broken=CHUNKS.format("len(items) - 1"),
        fixed=CHUNKS.format("len(items)"),
        questions={"chunks('abcde', 2)": "['ab', 'cd', 'e']", "chunks([], 3)": "[]", "chunks([4], 1)": "[[4]]"},
    ),
    Bug(
        name="initials",
        split="train",
        prompt="initials fails on names with two spaces in a row. Repair initials.py.",
        broken=INITIALS.format('" "'),
        fixed=INITIALS.format(""),
        questions={"initials('ada  lovelace')": "'AL'", "initials(' grace ')": "'G'", "initials('')": "''"},
    ),
    Bug(
        name="median",
        split="held_out",
        prompt="median of an even number of values is wrong. Repair median.py.",
        broken=MEDIAN.format("middle"),
        fixed=MEDIAN.format("middle - 1"),
        questions={"median([4, 1, 3, 2])": "2.5", "median([9, 5, 7])": "7", "median([6, 6])": "6.0"},
    ),
)
