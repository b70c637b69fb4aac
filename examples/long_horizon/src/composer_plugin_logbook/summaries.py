"""How the demonstrator sums up: in a line, or in a record of a dozen sections. Both hold the same.

The settings that it keeps and what is due stand in both, word for word; a record says eleven other things that are
worth saying in general and are the same in every book.
"""

from __future__ import annotations

from collections.abc import Sequence

SECTIONS = (
    ("task", "turn pages until one asks then answer"),
    ("goal", "an answer word by word"),
    ("place", "pages that turn one way"),
    ("files", "none was changed"),
    ("found", "{facts}"),
    ("chose", "to keep settings"),
    ("edits", "none so far"),
    ("errors", "none so far"),
    ("tests", "none so far"),
    ("open", "nothing is left"),
    ("todo", "turn pages"),
    ("next", "{due}"),
)
REQUEST = " recap " + " ".join(name for name, _ in SECTIONS)
"""What `summary/prompted` asks in this example; a test holds the run file against it."""


def short(facts: Sequence[str], due: str) -> str:
    return "".join(f" {text}" for text in [*facts, due])


def sections(facts: Sequence[str], due: str) -> str:
    told = {"facts": " ".join(facts) or "none", "due": due}
    return "".join(f" {name} {text.format(**told)}" for name, text in SECTIONS)


WAYS = {"short": short, "sections": sections}
