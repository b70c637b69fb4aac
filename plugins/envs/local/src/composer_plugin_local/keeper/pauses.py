"""Sandboxes that are about to stand still: a look at each, again and again, so that others are served meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from composer_plugin_local.keeper.sandboxes import Sandbox

LOOK_S = 0.001
"""Until the next look."""


class Pauses:
    """The requests that wait for sandboxes to stand still."""

    def __init__(self, reply: Callable[[int, dict[str, Any]], None], failed: Callable[[Sandbox], None]) -> None:
        """`failed` is told of a sandbox that could not be paused, and goes on."""
        self.reply, self.failed = reply, failed
        self._asked: dict[Sandbox, list[int]] = {}

    def patience_s(self, other_s: float | None) -> float | None:
        """Until the next look, or, without any, what others wait for."""
        return LOOK_S if self._asked else other_s

    def ask(self, sandbox: Sandbox, number: int) -> None:
        self._asked.setdefault(sandbox, []).append(number)
        self._look(sandbox)

    def look(self) -> None:
        for sandbox in list(self._asked):
            self._look(sandbox)

    def _look(self, sandbox: Sandbox) -> None:
        try:
            if sandbox.pause():
                self.over(sandbox)
        except OSError as error:
            self.over(sandbox, error="backend", message=str(error))
            self.failed(sandbox)

    def over(self, sandbox: Sandbox, **answer: str) -> None:
        """Nobody needs to wait for it any more."""
        for number in self._asked.pop(sandbox, ()):
            self.reply(number, answer)
