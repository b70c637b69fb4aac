"""From the answer to a request to the ids that a new branch begins with.

Ids are cut and never encoded: what is carried over is what was sampled, token by token. No answer is asked for again:
what the policy wrote is what it gets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from composer_core.errors import PluginFault
from composer_core.protocols import Tokenizer
from composer_plugin_summary.config import SummaryConfig


def carried(
    ids: Sequence[int], config: SummaryConfig, tokenizer: Tokenizer, stop_ids: Collection[int]
) -> tuple[int, ...]:
    """At most the first `summary_tokens` ids behind the thought; none of nothing but white space.

    `ids` are all that was sampled, thought and stop id included.
    """
    ended = bool(ids) and ids[-1] in stop_ids
    words = list(ids[:-1] if ended else ids)
    summary = _behind(words, config.think_end, tokenizer) if config.think_tokens else words
    return tuple(summary[: config.summary_tokens]) if tokenizer.decode(summary).strip() else ()


def _behind(ids: list[int], mark: str, tokenizer: Tokenizer) -> list[int]:
    """What stands behind the first `mark`, a control token or text that ends with some token; all of it without one."""
    try:
        control = tokenizer.special(mark)
    except (KeyError, PluginFault):  # a run's tokenizer is called across an edge, which names the plugin that raised
        control = None
    if control in ids:
        return ids[ids.index(control) + 1 :]
    if mark not in tokenizer.decode(ids):
        return ids
    return ids[bisect_left(range(len(ids)), True, key=lambda count: mark in tokenizer.decode(ids[:count])) :]
