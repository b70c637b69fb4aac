"""Documents that teach to spot what does not belong: a known file with one token replaced, then the line as it stands
and the line as it should be.

It is pre-training on correct text under noise, like replaced-token detection (ELECTRA, Clark et al. 2020): nothing
runs, nothing is validated, and a policy learns to compare what it reads with what it remembers. A replacement is drawn
from tokens of the same kind in the library. No document shows a bug of a held-out split: a noisy line that equals the
line of such a drill is left out.
"""

from __future__ import annotations

import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword

from attrs import frozen

from composer_core.noise import bits, key_of
from composer_plugin_drills.catalog import Function
from composer_plugin_drills.drills import drills
from composer_plugin_drills.mutations import replace_line


@frozen
class Token:
    """A token that may be replaced: where it stands, and its kind."""

    line: int
    start: int
    end: int
    text: str
    kind: str
    """name, number or operator."""


def documents(known: Sequence[Function], variants: int) -> Iterator[str]:
    """`variants` noisy documents of every function, in an order without meaning."""
    pool = _pool(known)
    held_out = _held_out()
    for variant in range(variants):
        for function in known:
            noisy = _noisy(function, variant, pool)
            if noisy is not None and (function.path, noisy[0], noisy[2]) not in held_out:
                yield _document(function, *noisy)


def _document(function: Function, line: int, before: str, after: str) -> str:
    text = replace_line(function.text, line, before, after)
    return f"{function.path}\n{text}{after.strip()}\n{before.strip()}\n"


def _noisy(function: Function, variant: int, pool: Mapping[str, Sequence[str]]) -> tuple[int, str, str] | None:
    """(line, correct, noisy), or None when the draw changes nothing."""
    key = key_of("restoring", function.path, variant)
    tokens = replaceable(function.text)
    token = tokens[bits(key, 0) % len(tokens)]
    local = sorted({one.text for one in tokens if one.kind == token.kind})
    choices = local if bits(key, 1) % 2 else pool[token.kind]
    text = choices[bits(key, 2) % len(choices)]
    before = function.text.split("\n")[token.line - 1]
    after = before[: token.start] + text + before[token.end :]
    return None if after == before else (token.line, before, after)


def replaceable(text: str) -> list[Token]:
    """Names, numbers and operators below the docstring."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = _kind(token)
        if kind and token.start[0] > 2:
            found.append(Token(token.start[0], token.start[1], token.end[1], token.string, kind))
    return found


def _kind(token: tokenize.TokenInfo) -> str | None:
    if token.type == tokenize.NAME and not iskeyword(token.string):
        return "name"
    if token.type == tokenize.NUMBER:
        return "number"
    return "operator" if token.type == tokenize.OP and token.string not in "()[]{}:,." else None


def _pool(known: Sequence[Function]) -> Mapping[str, Sequence[str]]:
    pool: dict[str, set[str]] = defaultdict(set)
    for function in known:
        for token in replaceable(function.text):
            pool[token.kind].add(token.text)
    return {kind: sorted(texts) for kind, texts in pool.items()}


def _held_out() -> set[tuple[str, int, str]]:
    return {(drill.path, drill.line, drill.after) for drill in drills().values() if drill.split != "train"}
