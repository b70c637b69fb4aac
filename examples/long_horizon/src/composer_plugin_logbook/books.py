"""A book: pages that turn one way. Its first pages name settings, each page names a word that turns it, the last asks.

    " log filler ... host bako timu reso ... turn lipa"      one of the first pages
    " log filler ... turn degi"                              one of those between
    " log filler ... answer host"                            the last

Everything follows from the book's name, its printing and the settings of the task set. A name begins with the kind of
text it is, and no setting of one kind has the words of another kind's: what is told of held-out books nothing has told.
"""

from __future__ import annotations

from random import Random

from attrs import frozen

from composer_core.noise import bits, key_of, shuffled
from composer_plugin_logbook.config import SETTINGS, BooksConfig
from composer_plugin_logbook.words import WORDS, any_of, distinct

KINDS = ("document", "train", "dev", "held_out")
"""What a book's name may begin with."""
PRINTING = 2
"""Raised when held-out books were looked at while settings were still being chosen: then all books are others."""


@frozen
class Book:
    """What a task is made from."""

    name: str
    facts: tuple[str, ...]
    """Lines such as "host bako timu reso", in the order of SETTINGS."""
    order: tuple[int, ...]
    """Which of the facts stands on the first page, on the second, and so on."""
    due: tuple[str, ...]
    """How each page ends: "turn WORD", the last "answer SETTING"."""
    fillers: tuple[tuple[str, ...], ...]
    """Words of each page that mean nothing."""

    @property
    def answer(self) -> str:
        """The line that the last page asks for."""
        asked = self.due[-1].removeprefix("answer ")
        return next(fact for fact in self.facts if fact.split()[0] == asked)

    @property
    def pages(self) -> tuple[str, ...]:
        return tuple(map(self._page, range(len(self.due))))

    def _page(self, number: int) -> str:
        words = self.fillers[number]
        middle = bits(key_of(self.name, "place"), number) % (len(words) + 1)
        fact = [self.facts[self.order[number]]] if number < len(self.order) else []
        return " " + " ".join(["log", *words[:middle], *fact, *words[middle:], self.due[number]])


def make(name: str, config: BooksConfig) -> Book:
    """The book of this name.

    Raises:
        ValueError: its name begins with none of KINDS.
    """
    key = key_of("logbook", PRINTING, name)
    values = _values(KINDS.index(name.partition("-")[0]), config, key)
    due = [f"turn {word}" for word in distinct("due", config.pages - 1, key)]
    return Book(
        name=name,
        facts=tuple(" ".join([setting, *words]) for setting, words in zip(SETTINGS, values, strict=False)),
        order=tuple(shuffled(list(range(config.facts)), key_of(key, "order"))),
        due=(*due, f"answer {SETTINGS[bits(key, 0) % config.facts]}"),
        fillers=tuple(tuple(any_of("filler", config.page_words, key_of(key, page))) for page in range(config.pages)),
    )


def _values(kind: int, config: BooksConfig, key: int) -> list[list[str]]:
    """For each setting words that no other of the book has. The sum of their places in the list tells the kind."""
    random, left = Random(key), list(WORDS["value"])
    found: list[list[str]] = []
    while len(found) < config.facts:
        words = random.sample(left, config.fact_words)
        if sum(map(WORDS["value"].index, words)) % len(KINDS) == kind:
            found.append(words)
            left = [word for word in left if word not in words]
    return found
