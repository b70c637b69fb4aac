"""Documents: what a policy reads before it acts. None holds a value of a book, and none says how to sum up.

A document of `train` tells settings with made-up values among words that mean nothing, tells some of them again, in
order, and at its end one of them: what they teach is to look a line up by its name and to copy it, from near and far.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from composer_core.noise import bits, key_of
from composer_plugin_logbook.books import make
from composer_plugin_logbook.config import SETTINGS, BooksConfig
from composer_plugin_logbook.summaries import REQUEST, WAYS
from composer_plugin_logbook.words import WORDS

REPEATS = 40
"""How often the vocabulary's text says each word, so that it becomes one token."""
TOOL_WORDS = ("turn", "answer", "word", "text", "log", "unknown", "recap")


def train(config: BooksConfig) -> Iterator[str]:
    """Every document from a draw of its own. Most have little between the lines: what means nothing teaches nothing."""
    for number in range(config.documents):
        key = key_of("logbook document", number)
        words = bits(key, 0) % (1 + config.page_words // (1, 4, 16, 16)[bits(key, 1) % 4])
        book = make(f"document-{number}", evolve(config, pages=config.facts + 1, page_words=words))
        yield document(book.pages, book.facts, book.answer, key)


def document(pages: tuple[str, ...], facts: tuple[str, ...], answer: str, key: int) -> str:
    """Pages, the settings told again, another page, and the answer."""
    again = [fact for at, fact in enumerate(facts) if bits(key, 8 + at) % 4] + [answer]
    return "".join([*pages[:-1], *(f" {fact}" for fact in again[:-1]), pages[-1], f" {answer}"])


def vocabulary(prompt: str) -> Iterator[str]:
    """Every word that an episode can hold, often enough."""
    words = [*SETTINGS, *TOOL_WORDS, *prompt.split(), *REQUEST.split(), *WAYS["sections"]((), "").split()]
    words += [word for sort in WORDS.values() for word in sort]
    text = " " + " ".join(dict.fromkeys(words))
    for _ in range(REPEATS):
        yield text
