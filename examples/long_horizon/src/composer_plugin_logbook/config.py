"""Settings of the task set and of its demonstrator. Thin."""

from __future__ import annotations

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, in_, le

SETTINGS = ("host", "port", "user", "zone", "mode", "pool")
"""What a setting may be called; a book has the first few."""


def _below_pages(config: BooksConfig, attribute: Attribute[int], facts: int) -> None:
    if not 0 < facts <= len(SETTINGS) or facts >= config.pages:
        most = min(len(SETTINGS), config.pages - 1)
        raise ValueError(f"{attribute.name} must be 1 to {most}: one a page, the last page asks; found {facts}")


@frozen
class BooksConfig:
    """Settings of the task set `logbook/books`: how long a book is, and what is to be remembered of it."""

    pages: int = field(default=10, validator=gt(1))
    """Pages of a book; the last one asks."""
    page_words: int = field(default=99, validator=ge(0))
    """Words of a page that mean nothing: the work that fills a window."""
    facts: int = field(default=2, validator=_below_pages)
    """Settings that a book names, one on each of its first pages; its last page asks for one of them."""
    fact_words: int = field(default=3, validator=[gt(0), le(8)])
    """Words of a setting's value."""
    train: int = field(default=2048, validator=gt(0))
    """Books to learn from."""
    documents: int = field(default=4000, validator=gt(0))
    """Documents to pre-train on."""


@frozen
class ReaderConfig:
    """Settings of the sampler `logbook/reader`."""

    summary: str = field(default="short", validator=in_(("short", "sections")))
    """How it sums up: the settings and what is due, or a record of a dozen sections that holds the same."""
    kept: float = field(default=0.9, validator=[ge(0), le(1)])
    """Probability with which a summary keeps a setting that its window shows, each by itself; the same in both ways."""
    request_word: str = "recap"
    """What every request for a summary says, and nothing else, no control tag either."""
