"""`diff`: a change is as large as it has to be, leaves nothing lying about, and says in code what it does."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from statistics import median

from attrs import frozen

from composer_core import Trace
from composer_core.diffs import FileDiff, compare
from composer_core.types import Score
from composer_plugin_behavior.comments import commented
from composer_plugin_behavior.config import DiffConfig
from composer_plugin_behavior.gate import gated, score

MOST_CHARS = 1 << 20
"""Of a file that is taken apart; larger ones are not looked at for comments."""


@frozen
class Facts:
    """What one member's patch amounts to."""

    lines: int
    """Added and removed."""
    stray: tuple[str, ...]
    """New files that nobody asked for."""
    chars: int
    """Characters of added lines, their indentation apart."""
    comments: int
    """Those of them that are comments or docstrings."""


def diff(group: Sequence[Trace], config: DiffConfig) -> list[Score]:
    """-(size + stray + comments) / 3, each term between 0 and 1.

    size = clip((n / m - free) / (most - free), 0, 1), with n the changed lines and m their median over the members that
    solved the task (at least `least_lines`): what the task needs is known by what the others needed. stray = 1 if the
    patch makes a file of a kind that work leaves behind. comments = clip((c - allowed) / (1 - allowed), 0, 1), with c
    the share of comments and docstrings in the added characters: reasoning that moves into comments is neither shorter
    nor free.

    Source: reasoning hidden in comments was seen by the Composer 2 report (arXiv 2603.24477, section 4.2); the size
    against the group's median is ours.
    """
    facts = [facts_of(trace, config) for trace in group]
    solved = [one.lines for trace, one in zip(group, facts, strict=True) if trace.verdict.solved]
    usual = max(config.least_lines, median(solved or [0]))
    return [gated(trace, _of(one, usual, config)) for trace, one in zip(group, facts, strict=True)]


def _of(facts: Facts, usual: float, config: DiffConfig) -> Score:
    share = facts.comments / max(1, facts.chars)
    many = facts.comments >= config.least_chars
    parts = {
        "size": _clipped((facts.lines / usual - config.free) / (config.most - config.free)),
        "stray": float(bool(facts.stray)),
        "comments": _clipped((share - config.comments) / (1 - config.comments)) if many else 0.0,
    }
    counted = {"changed_lines": float(facts.lines), "comment_share": share}
    return score(-sum(parts.values()) / 3, {**parts, **counted}, ", ".join(facts.stray))


def facts_of(trace: Trace, config: DiffConfig) -> Facts:
    """Files whose originals were not kept count for nothing: what changed in them is not known."""
    texts = {file.path: file.data.decode(errors="replace") for file in trace.patch.writes}
    files = [one for one in compare(trace.originals, trace.patch, trace.originals_whole) if one.how != "written"]
    stray = [one.path for one in files if one.how == "new" and _stray(one.path, config.stray)]
    kept = [one for one in files if one.path not in stray]
    added = [_added(one, texts.get(one.path, "")) for one in kept]
    return Facts(
        lines=sum(mark in "+-" for one in kept for mark, _ in one.rows),
        stray=tuple(stray),
        chars=sum(chars for chars, _ in added),
        comments=sum(comments for _, comments in added),
    )


def _stray(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase("/" + path.lower(), pattern.lower()) for pattern in patterns)


def _added(file: FileDiff, text: str) -> tuple[int, int]:
    """(characters, characters of comments) of a file's added lines."""
    rows = [row for mark, row in file.rows if mark == "+"]
    if len(text) > MOST_CHARS:
        return 0, 0
    comments = commented(file.path, text)
    return sum(len(row.strip()) for row in rows), sum(comments.get(row, 0) for row in rows)


def _clipped(value: float) -> float:
    return min(1.0, max(0.0, value))
