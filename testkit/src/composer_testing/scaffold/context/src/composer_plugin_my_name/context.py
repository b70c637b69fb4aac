"""A context without a second model: when the window fills up, all but the opening and the latest turns is left out."""

import json

from composer_core import BuildContext
from composer_core.protocols import ContextView, Continue, NewBranch
from composer_core.types import Message, Turn
from composer_plugin_my_name.plugin import MyNameConfig


class MyNameContext:
    """`protocols.Context`: asked before each turn, it decides from the view alone and keeps no state of its own."""

    def __init__(self, config: MyNameConfig, build: BuildContext) -> None:
        self._config = config

    def next(self, view: ContextView) -> Continue | NewBranch:
        """Go on, or open a branch; tokens of the old one stay trained there, in the new one they are only told."""
        if view.tokens < self._config.full * view.limits.context_tokens or not view.trace().turns:
            return Continue()
        trace = view.trace()
        told = "\n\n".join(_told(turn) for turn in trace.turns[-self._config.keep_turns :])
        return NewBranch((*trace.opening, Message("summary", f"Earlier steps are left out. The latest:\n\n{told}")))


def _told(turn: Turn) -> str:
    """A turn's calls with their results; the policy's own words are left out."""
    pairs = zip(turn.calls, turn.results, strict=True)
    return "\n\n".join(f"{call.name} {json.dumps(dict(call.arguments))}\n{result.text}" for call, result in pairs)
