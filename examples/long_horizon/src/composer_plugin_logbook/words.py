"""The words of books: made up, so that nothing can be guessed, each of four letters, and of one sort only.

Values, words that are due and words that mean nothing come from lists of their own. A word is always written with the
space before it, so that it is one token wherever it stands.
"""

from __future__ import annotations

from random import Random

from composer_core.noise import key_of, shuffled

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
SIZES = {"value": 64, "due": 24, "filler": 16}


def _words() -> dict[str, tuple[str, ...]]:
    syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
    order = shuffled(list(range(len(syllables) ** 2)), key_of("logbook words"))
    made = iter([syllables[at // len(syllables)] + syllables[at % len(syllables)] for at in order])
    return {sort: tuple(next(made) for _ in range(size)) for sort, size in SIZES.items()}


WORDS = _words()
"""Sort -> its words."""


def distinct(sort: str, count: int, key: int) -> list[str]:
    """So many different words of a sort.

    Raises:
        ValueError: there are not so many.
    """
    if count > len(WORDS[sort]):
        raise ValueError(f"a book needs {count} {sort} words, there are {len(WORDS[sort])}")
    return Random(key).sample(WORDS[sort], count)


def any_of(sort: str, count: int, key: int) -> list[str]:
    """So many words of a sort, repeated as it comes."""
    return Random(key).choices(WORDS[sort], k=count)
