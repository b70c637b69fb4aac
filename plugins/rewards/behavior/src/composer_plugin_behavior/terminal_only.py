"""`terminal_only`: an agent that has tools for reading and editing does not do everything in the shell."""

from __future__ import annotations

from collections.abc import Sequence

from composer_core import Trace
from composer_core.types import Score
from composer_plugin_behavior.config import TerminalOnlyConfig
from composer_plugin_behavior.gate import gated, score


def terminal_only(group: Sequence[Trace], config: TerminalOnlyConfig) -> list[Score]:
    """-clip((s - free) / (1 - free), 0, 1), with s the share of the terminal among the calls that do something.

    Broken calls count for the tool that they name. An episode with fewer than `least_calls` such calls has not
    collapsed to anything and gets 0.

    Source: the Composer 2 report saw policies collapse to the terminal alone (arXiv 2603.24477, section 4.2).
    """
    return [gated(trace, _of(trace, config)) for trace in group]


def _of(trace: Trace, config: TerminalOnlyConfig) -> Score:
    names = [call.name for call in trace.calls() if call.name not in config.apart]
    share = sum(name in config.tools for name in names) / max(1, len(names))
    beyond = max(0.0, (share - config.free) / (1 - config.free)) if len(names) >= config.least_calls else 0.0
    return score(-beyond, {"share": share, "calls": float(len(names))})
