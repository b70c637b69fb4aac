"""`broken_calls`: calls that could not be executed cost, and are never left out of the count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import evolve

from composer_core import Trace
from composer_core.printable import clip
from composer_core.types import Score, Turn
from composer_plugin_behavior.config import BrokenCallsConfig
from composer_plugin_behavior.gate import gated, score

HINT_CHARS = 500
"""Of a turn's hint: what was wrong quotes the policy, which may have written a name of any length."""


def broken_calls(group: Sequence[Trace], config: BrokenCallsConfig) -> list[Score]:
    """-min(1, b / most), with b the calls that are malformed, cut off, of an unknown tool or with bad arguments.

    It counts calls and not their share, which more calls would lower. An episode with broken calls is graded and
    trained like any other: where such samples were dropped, a policy learned to break calls on purpose.

    What was wrong with a turn's calls is also a hint for that turn, with which a trainer can make a teacher of it.

    Source: cursor.com/blog/real-time-rl-for-composer (2026-03-26), where broken calls became negative examples.
    """
    return [gated(trace, _of(trace, config)) for trace in group]


def _of(trace: Trace, config: BrokenCallsConfig) -> Score:
    problems = Counter(call.problem for call in trace.calls() if call.problem)
    parts = {str(problem): float(count) for problem, count in sorted(problems.items())}
    found = score(-min(1.0, problems.total() / config.most), parts)
    return evolve(found, hints={turn.index: hint for turn in trace.turns if (hint := _hint(turn))})


def _hint(turn: Turn) -> str:
    """What was wrong, as it is told after the turn, said before it."""
    wrong = [f"{call.name or 'a call'}: {call.detail or call.problem}" for call in turn.calls if call.problem]
    text = "A call that cannot be executed would follow here. " + "; ".join(wrong)
    return clip(text, HINT_CHARS)[0] if wrong else ""
