"""The built-in context: one branch, no compaction; the episode ends when its window is full."""

from __future__ import annotations

from composer_core.protocols import BuildContext, ContextView, Continue
from composer_core.records import NoConfig


class Plain:
    """`protocols.Context` that always continues."""

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        pass

    def next(self, view: ContextView) -> Continue:
        return Continue()
