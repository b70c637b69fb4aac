"""Whose child is whose, and how a whole tree of processes is killed or stopped however fast it grows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

ROUNDS = 200
"""Looks at the process table until a tree holds still; far more than any pids limit lets it grow."""
STOP_S = 2.0
"""How long a tree may take to stop: a process in the middle of a read or write does so at its end."""


def descendants(root: int) -> dict[int, str]:
    """Pid -> state of every process below `root`, zombies left out."""
    parents, states = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                parents[int(name)], states[int(name)] = int(parent), state.decode()
    below, found = {root}, {}
    grown = True
    while grown:
        more = [pid for pid, parent in parents.items() if parent in below and pid not in below]
        below.update(more)
        found.update({pid: states[pid] for pid in more})
        grown = bool(more)
    return {pid: state for pid, state in found.items() if state not in "ZX"}


def kill_below(root: int) -> bool:
    """Stop everything first, so that nothing can grow, then kill it; whether all of it is gone.

    `root` has to adopt orphans, so nothing can leave the tree, and to wait for its children.
    """
    for _ in range(ROUNDS):
        running = [pid for pid, state in descendants(root).items() if state not in "Tt"]
        if not running:
            break
        _send(running, signal.SIGSTOP)
    for _ in range(ROUNDS):
        left = list(descendants(root))
        if not left:
            return True
        _send(left, signal.SIGKILL)
    return False


class Stop:
    """Stops processes and everything below them, look by look: whoever has others to serve need not wait for one that
    is slow to stop. The parents of `roots` must not be able to let them go on.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self.roots = set(roots)
        self.stopped = set(self.roots)
        self._end = time.monotonic() + STOP_S
        _send(self.roots, signal.SIGSTOP)

    def step(self) -> bool:
        """Whether all of them stand still now. Raises OSError once that has taken too long."""
        below: dict[int, str] = {}
        for root in self.roots:
            below |= descendants(root)
        running = [pid for pid, state in below.items() if state not in "Tt"]
        if running and time.monotonic() > self._end:
            raise OSError(f"{len(running)} processes do not stop")
        self.stopped.update(running)
        _send(running, signal.SIGSTOP)
        return not running

    def go_on(self) -> None:
        """Let what was stopped run; what had been stopped before stays so."""
        _send(self.stopped, signal.SIGCONT)

    def spare(self, root: int) -> None:
        """One of `roots`, below which nothing is left, may serve others."""
        if root in self.roots:
            self.roots.discard(root)
            self.stopped.discard(root)
            _send([root], signal.SIGCONT)


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
