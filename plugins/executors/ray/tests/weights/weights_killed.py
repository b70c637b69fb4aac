"""Ships weights in a child for each file operation that there is, and kills the child right before it.

    python weights_killed.py ROOT

A child works in ROOT/N, where N is the operation that it did not live to do; where that was a rename, a second child,
in ROOT/N-half, leaves half of what it had written, as a kill in the middle of writing would.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from shipping import Place

CHANGES = ("open", "os.rename", "os.remove", "os.link", "os.mkdir")
VERSIONS = 5


def committed(place: Path) -> list[int]:
    """The third version is committed once it is out."""
    return [2] if (place / "committed").exists() else []


async def ship(root: Path) -> None:
    place = Place(root, full_every=3, committed=lambda: committed(root))
    receiver = place.receiver("sampler")
    for version in range(VERSIONS):
        await place.arrives(receiver, await place.publish())
        if version == 2:
            (root / "committed").touch()


def killed(root: Path, operation: int, *, half: bool) -> str:
    """What the child was about to do when it died; empty if it ended by itself, as there are not so many operations."""
    root.mkdir()
    child = os.fork()
    if child:
        return ("", *CHANGES)[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
    left = operation

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        reads = event == "open" and str(arguments[1]) not in ("wb", "xb")
        if event not in CHANGES or reads or str(root) not in str(arguments[0]):
            return
        left -= 1
        if left < 0:
            if half and event == "os.rename":
                os.truncate(arguments[0], os.stat(arguments[0]).st_size // 2)
            os._exit(1 + CHANGES.index(event))

    sys.addaudithook(count)
    asyncio.run(ship(root))
    os._exit(0)


def main() -> None:
    root, operation = Path(sys.argv[1]), 0
    while event := killed(root / f"{operation}", operation, half=False):
        if event == "os.rename":
            killed(root / f"{operation}-half", operation, half=True)
        operation += 1


if __name__ == "__main__":
    main()
