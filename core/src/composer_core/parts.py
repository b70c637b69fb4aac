"""The parts an episode is run with, as a node has them: what `episode` and `acting` find each other through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from attrs import Factory, frozen

from composer_core.errors import boundary
from composer_core.events import Event
from composer_core.harness import Harness
from composer_core.protocols import Context, Renderer, Sampler
from composer_core.sandbox import Sandboxes
from composer_core.scoring import Reward
from composer_core.toolbox import Toolbox
from composer_core.types import Grading, GradingRef, Turn

__all__ = ["EpisodeParts"]


@frozen
class EpisodeParts:
    """What a node offers to the episodes it runs."""

    samplers: Mapping[str, Sampler]
    renderer: Renderer
    toolbox: Toolbox
    sandboxes: Sandboxes
    context: Context
    rewards: tuple[Reward, ...] = ()
    resolve_grading: Callable[[GradingRef], Grading] | None = None
    emit: Callable[[Event], None] = lambda event: None
    deterministic: bool = False
    harness: Harness = Factory(Harness)
    """What the policy sees the world through; its stamp goes onto every trace."""
    watch: Callable[[Turn], None] = lambda turn: None
    """Is shown each turn as it ends, words and results included; for a person who looks on."""
    ids: Mapping[str, str] = Factory(dict)
    """Whom to blame: component ids by kind, and by "samplers/NAME"."""

    def blame(self, kind: str, name: str = "") -> AbstractContextManager[None]:
        """The edge to a component: what it raises carries its id."""
        key = f"{kind}/{name}" if name else kind
        return boundary(kind, self.ids.get(key, key))
