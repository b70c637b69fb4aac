"""What every context owes: it decides from the view alone, quickly, and the same each time."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest
from attrs import evolve

from composer_core.protocols import Ask, Context, ContextView, Continue, NewBranch
from composer_core.trees import Tree
from composer_core.types import Limits, SlotKey, Stop, TaskView, Trace


def view(tokens: int, sampled_tokens: int = 0, limits: Limits | None = None) -> ContextView:
    """A view of an episode with so many tokens in its current branch."""
    limits = limits or Limits()
    task = TaskView("task", "do it", Tree(()).ref, limits)
    trace = Trace(SlotKey("task", 0), "group", (), (), (), Stop.CANCELLED)
    return ContextView(task, lambda: trace, tokens, sampled_tokens, limits)


class ContextContract(ABC):
    """Subclass and override `build`."""

    @abstractmethod
    def build(self) -> Context:
        """A context of the kind under test."""

    @pytest.mark.parametrize("tokens", [1, 100, 1000, 100_000])
    def test_it_decides_something_the_loop_understands(self, tokens: int) -> None:
        assert isinstance(self.build().next(view(tokens)), Continue | Ask | NewBranch)

    def test_it_is_pure(self) -> None:
        context, seen = self.build(), view(500)
        assert context.next(seen) == context.next(evolve(seen))

    def test_it_goes_on_with_a_short_branch(self) -> None:
        assert self.build().next(view(10)) == Continue()

    def test_a_new_branch_never_starts_empty(self) -> None:
        decision = self.build().next(view(10_000_000))
        assert not isinstance(decision, NewBranch) or decision.messages
