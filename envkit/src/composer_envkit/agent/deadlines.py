"""How long commands may take, as an agent keeps it. The time in which a sandbox is paused does not count."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from composer_envkit.agent.sessions import Shell

LONGEST_S = 3600.0
"""A session's shell is not late for as good as ever, which is more than a wait may be long."""
AGAIN_S = 0.05
"""How long after a kill the command is looked at again: what had not started then has now."""


class Timed:
    """A command whose time runs; each agent's own kind of command is a subclass."""

    shell: Shell | None = None
    """Whose process it is."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.started = time.monotonic()
        self.deadline: float = self.started + request["timeout_s"]
        self.timed_out = False

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self.started

    def stood_still(self, seconds: float) -> None:
        """That time does not count."""
        self.started += seconds
        self.deadline += seconds
        if self.shell is not None:
            self.shell.stood_still(seconds)

    def kill(self) -> None:
        """Safe twice."""
        raise NotImplementedError("end the command and what it has started")


def patience_s(commands: Iterable[Timed]) -> float | None:
    """Until one of them is late; None without any."""
    due = [command.deadline for command in commands]
    return min(max(0.0, min(due) - time.monotonic()), LONGEST_S) if due else None


def end_late(commands: Iterable[Timed]) -> None:
    now = time.monotonic()
    for command in [command for command in commands if command.deadline <= now]:
        command.timed_out = True
        command.kill()
        command.deadline = time.monotonic() + AGAIN_S
