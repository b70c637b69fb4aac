"""What each closed branch of a trace cost and left: the figures that summaries are judged by. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from composer_core import Trace
from composer_core.types import Turn


@frozen
class Segment:
    """One closed branch, and what the next one began with."""

    branch: int
    tokens_before: int
    """Of the branch when it was closed."""
    tokens_after: int
    """Of the next one when it was opened: prompt, summary and kept state."""
    summary_tokens: int
    """Sampled for the summary, thought included; 0 where none was asked for."""
    cut: bool
    """Whether the answer met its limit before its end."""
    text: str
    """The answer's words, thought included."""
    read: str
    """The results of this branch."""

    @property
    def asked(self) -> bool:
        """Whether a summary was asked for; an answer has at least the token that ends it."""
        return self.summary_tokens > 0

    def summary(self, think_end: str) -> str:
        """Its words behind the thought, if a thought was ended."""
        thought, mark, summary = self.text.partition(think_end)
        return summary if mark else thought


def segments(trace: Trace) -> tuple[Segment, ...]:
    """In order; none for an episode that never left its first branch."""
    turns: list[list[Turn]] = [[] for _ in trace.branches]
    for turn in trace.turns:
        turns[turn.branch].append(turn)
    found = []
    for number in range(len(trace.branches) - 1):
        answer = next((turn for turn in reversed(turns[number]) if turn.purpose == "summary"), None)
        found.append(
            Segment(
                branch=number,
                tokens_before=len(trace.branches[number]),
                tokens_after=turns[number + 1][0].start if turns[number + 1] else len(trace.branches[number + 1]),
                summary_tokens=answer.stop - answer.start if answer else 0,
                cut=answer is not None and answer.sampler_stop != "stop",
                text=answer.text if answer else "",
                read="\n".join(result.text for turn in turns[number] for result in turn.results),
            )
        )
    return tuple(found)


def kept_shares(found: Sequence[Segment], facts: Sequence[str], think_end: str) -> list[float]:
    """For each summary, which share of the facts read so far it holds word for word; none before the first fact."""
    known: set[str] = set()
    shares = []
    for segment in found:
        known |= {fact for fact in facts if fact in segment.read}
        if known:
            summary = segment.summary(think_end)
            shares.append(sum(fact in summary for fact in known) / len(known))
    return shares
