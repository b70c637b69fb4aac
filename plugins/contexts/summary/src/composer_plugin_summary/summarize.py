"""`summary/self` and `summary/prompted`: one object, which asks for a summary and goes on from it.

It keeps nothing on itself: whether a summary is due, asked for or written follows from the open branch.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from composer_core import BuildContext, Trace
from composer_core.columns import Column
from composer_core.protocols import Ask, ContextView, Continue, NewBranch
from composer_core.types import Message
from composer_plugin_summary.carry import carried
from composer_plugin_summary.config import SummaryConfig
from composer_plugin_summary.segments import StoredSegments
from composer_plugin_summary.state import files_of, state_of


class Summarizing:
    """`protocols.Context`, and `protocols.KeepsSegments`."""

    def __init__(self, config: SummaryConfig, build: BuildContext) -> None:
        self._config, self._build = config, build

    def next(self, view: ContextView) -> Continue | Ask | NewBranch:
        """Under the trigger a turn; at it a request; after the answer a branch. A branch has at least one turn."""
        if view.tokens < self._config.trigger_tokens:
            return Continue()
        segment = view.segment()
        if not segment.turns:
            return Continue()
        if segment.turns[-1].purpose == "summary":
            messages = (*segment.opening, *self._summary(segment), *state_of(self._config, view))
            return NewBranch(messages, files_of(self._config, view, segment))
        trained = segment.key.stage not in self._config.untrained_in
        return Ask(Message("user", self._config.asked), self._config.answer_tokens, trained)

    def segments(self, episode_id: str) -> MutableMapping[int, Trace]:
        return StoredSegments(self._build.get("stores"), self._build.run_dir, episode_id)

    def _summary(self, segment: Trace) -> tuple[Message, ...]:
        turn, branch = segment.turns[-1], segment.branches[-1]
        tokenizer, stop_ids = self._build.get("tokenizer"), self._build.get("renderers").stop_ids()
        found = carried(branch.ids.values()[turn.start : turn.stop], self._config, tokenizer, stop_ids)
        return (Message("summary", tokenizer.decode(found), Column.of("I32", found)),) if found else ()
