"""The reward `workshop/small_patch`: the share of lines that a patch leaves as they were.

A reward names what it wants as parameters: here the patch, and `grading`, which opens a fresh fork of the pristine
workspace. It asks for neither the trace nor the group, so its record may say `pure`: equal patches of a task are scored
once in a run.

It is an auxiliary: it pays small patches whether they are right or not. That is why its range is declared and why
`composer-run check` refuses a run in which it could outweigh the outcome. Doing nothing scores 0 and not 1, or giving
up would be the surest way to be paid.
"""

from collections import Counter

from composer_core import Patch
from composer_core.errors import PathError, QuotaError
from composer_core.protocols import GradingRoom, OpenGrading


async def small_patch(patch: Patch, grading: OpenGrading) -> float:
    """2 x lines in common / lines before and after, over all touched files; 0 if nothing was changed.

    Lines are counted as a bag (their order is ignored), which takes time in proportion to the text and no more: a diff
    of a text that was made to be slow is the host's time. A move of lines costs nothing.
    """
    if not patch:
        return 0.0
    after = {file.path: file.data for file in patch.writes}
    async with grading() as room:
        pairs = [(await pristine(room, path), lines(after.get(path, b""))) for path in patch.touched()]
    total = sum(before.total() + now.total() for before, now in pairs)
    kept = sum((before & now).total() for before, now in pairs)
    return 2 * kept / total if total else 0.0


async def pristine(room: GradingRoom, path: str) -> Counter[bytes]:
    """Lines of a file before the patch; none of a file that is new, or too large to be read."""
    try:
        return lines(await room.sandbox.read(path))
    except (PathError, QuotaError):
        return Counter()


def lines(data: bytes) -> Counter[bytes]:
    """How often each line occurs."""
    return Counter(data.splitlines())
