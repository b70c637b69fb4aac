"""What takes long happens on a thread beside the event loop, and is waited for, whoever gives up meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


async def settled(act: Callable[[], T]) -> T:
    """`act()` on a thread. A caller that is cancelled waits for its end, so nobody else begins in the middle of it."""
    task = asyncio.ensure_future(asyncio.to_thread(act))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.exception()  # seen: there is nobody left to tell
        raise


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
