"""Which thread computes with helpers. One alone should: libgomp keeps a team for each thread that ever ran a parallel
loop, and as soon as all teams together are larger than the machine, every team waits in the kernel instead of spinning
(small products take three times as long, measured on 2 cores; libgomp calls it throttled spinning).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let this thread compute alone inside: for loading weights on an event loop's thread, say, beside a trainer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
