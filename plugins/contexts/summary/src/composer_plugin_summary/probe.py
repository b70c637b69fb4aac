"""`summary/kept`: a probe of what summaries keep, as a reward that weighs nothing unless a run says so.

A reward because that is what sees a whole trace on the trusted side, with the task's labels beside it: facts stand in a
label, which the model is never shown. Its parts are means over the segments of the episode.
"""

from __future__ import annotations

from composer_core import Score, TaskView, Trace
from composer_plugin_summary.config import ProbeConfig
from composer_plugin_summary.metrics import kept_shares, segments


def kept(trace: Trace, task: TaskView, config: ProbeConfig) -> Score:
    """Mean share of the facts read so far that each summary holds; 1 where there was nothing to keep.

    The note has the share of each summary, in order.
    """
    facts = [line for line in task.labels.get(config.label, "").splitlines() if line]
    found = segments(trace)
    shares = kept_shares(found, facts, config.think_end)
    parts = {"segments": float(len(found))}
    if found:
        parts |= {
            "tokens_before": _mean([one.tokens_before for one in found]),
            "tokens_after": _mean([one.tokens_after for one in found]),
            "summary_tokens": _mean([one.summary_tokens for one in found]),
            "cut_share": _mean([one.cut for one in found]),
            "empty_share": _mean([one.asked and not one.summary(config.think_end).strip() for one in found]),
        }
    note = " ".join(f"{share:.2f}" for share in shares)
    return Score("summary/kept", "", _mean(shares) if shares else 1.0, parts, note)


def _mean(values: list[float] | list[int] | list[bool]) -> float:
    return sum(values) / len(values)
