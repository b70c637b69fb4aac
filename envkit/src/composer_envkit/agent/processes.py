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


def stop(root: int) -> set[int]:
    """Stop a process and everything below it; who was stopped, for `go_on`. Raises OSError if that cannot be done.

    Its parent must not be able to let it go on.
    """
    stopped, end = {root}, time.monotonic() + STOP_S
    _send([root], signal.SIGSTOP)
    while True:
        running = [pid for pid, state in descendants(root).items() if state not in "Tt"]
        if not running:
            return stopped
        if time.monotonic() > end:
            go_on(stopped)
            raise OSError(f"{len(running)} processes do not stop")
        stopped.update(running)
        _send(running, signal.SIGSTOP)
        time.sleep(0.0005)


def go_on(stopped: Iterable[int]) -> None:
    """Let what was stopped run; what had been stopped before stays so."""
    _send(stopped, signal.SIGCONT)


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
