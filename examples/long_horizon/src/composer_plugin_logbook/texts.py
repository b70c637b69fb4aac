"""Documents: what a policy reads before it acts. None holds a value of a book, and none says what a summary looks like.

A document of `train` tells settings with made-up values among words that mean nothing. After each page it tells those
read so far once more, in their order, then names one of them and tells that one: what they teach is to find a line, to
look one up by its name, and to copy it.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from composer_core.noise import bits, key_of
from composer_plugin_logbook.books import Book, make
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
        words = bits(key, 0) % (1 + config.page_words // (1, 2, 4, 16)[bits(key, 1) % 4])
        facts = min(config.facts + bits(key, 2) % 3, len(SETTINGS))
        yield document(make(f"document-{number}", evolve(config, facts=facts, pages=facts + 1, page_words=words)))


def document(book: Book) -> str:
    """Pages, after each but the last the settings read so far and one of them again, and the answer."""
    told = []
    for number, page in enumerate(book.pages[:-1], start=1):
        read = [book.facts[at] for at in sorted(book.order[:number])]
        again = read[bits(key_of(book.name, "again"), number) % len(read)]
        told += [page, *(f" {fact}" for fact in read), f" answer {again.split()[0]} {again}"]
    return "".join([*told, book.pages[-1], f" {book.answer}"])


def vocabulary(prompt: str) -> Iterator[str]:
    """Every word that an episode can hold, often enough."""
    words = [*SETTINGS, *TOOL_WORDS, *prompt.split(), *REQUEST.split(), *WAYS["sections"]((), "").split()]
    words += [word for sort in WORDS.values() for word in sort]
    text = " " + " ".join(dict.fromkeys(words))
    for _ in range(REPEATS):
        yield text
