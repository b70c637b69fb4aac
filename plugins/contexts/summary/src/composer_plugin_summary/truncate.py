"""`summary/truncate`: what nobody sums up is gone. The arm that summaries are measured against."""

from __future__ import annotations

from collections.abc import MutableMapping

from composer_core import BuildContext, Trace
from composer_core.protocols import ContextView, Continue, NewBranch
from composer_core.types import Message
from composer_plugin_summary.config import TruncateConfig
from composer_plugin_summary.segments import StoredSegments
from composer_plugin_summary.state import files_of, state_of
from composer_plugin_summary.told import told


class Truncating:
    """`protocols.Context`, and `protocols.KeepsSegments`."""

    def __init__(self, config: TruncateConfig, build: BuildContext) -> None:
        self._config, self._build = config, build

    def next(self, view: ContextView) -> Continue | NewBranch:
        """Under the trigger a turn, at it a branch with the latest turns. A branch has at least one turn."""
        if view.tokens < self._config.trigger_tokens:
            return Continue()
        segment = view.segment()
        if not segment.turns:
            return Continue()
        latest = Message("summary", told(segment.turns[-self._config.keep_turns :]))
        messages = (*segment.opening, latest, *state_of(self._config, view))
        return NewBranch(messages, files_of(self._config, view, segment))

    def segments(self, episode_id: str) -> MutableMapping[int, Trace]:
        return StoredSegments(self._build.get("stores"), self._build.run_dir, episode_id)
