"""Documents that teach to copy and to restore: a known file made wrong, its body as it stands and as it should be.

It is pre-training on correct text under noise, in the way of denoising autoencoders (BART, Lewis et al. 2020): nothing
runs, nothing is validated. A policy learns two modes: after `old` it follows what it has just read, after `new` what it
remembers, whatever the other would say. They come apart only if the text read often is no help at all: up to every
token of a body is replaced, dropped or followed by another, and one document in four shows another function's body.

A replacement is drawn from tokens of the same kind in the library. Edit sites of held-out splits stay untouched.
"""

from __future__ import annotations

import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword

from attrs import frozen

from composer_core.noise import bits, key_of, shuffled
from composer_plugin_drills.catalog import HEAD_LINES, Function, body
from composer_plugin_drills.drills import drills
from composer_plugin_drills.mutations import Span, overlap

STRANGERS = 4
"""One document in so many shows another function's body."""


@frozen
class Token:
    """A token that may be replaced: where it stands, and its kind."""

    line: int
    start: int
    end: int
    text: str
    kind: str
    """name, keyword, number, string, operator or mark (brackets, commas and the like)."""


def documents(known: Sequence[Function], variants: int) -> Iterator[str]:
    """`variants` noisy documents of every function, variant by variant."""
    free = {function.path: free_tokens(function) for function in known}
    pool = _pool([token for tokens in free.values() for token in tokens])
    for variant in range(variants):
        for function in known:
            key = key_of("restoring", function.path, variant)
            shown = known[bits(key, 0) % len(known)] if bits(key, 1) % STRANGERS == 0 else function
            noisy = _noisy(shown, free[shown.path], pool, key)
            if noisy != function.text:
                head = function.text.split("\n")[:HEAD_LINES]
                lines = [*head, *noisy.split("\n")[HEAD_LINES:]]
                yield "\n".join([function.path, *lines]) + f"old\n{body(noisy)}\nnew\n{body(function.text)}\n"


def _noisy(function: Function, tokens: Sequence[Token], pool: Mapping[str, Sequence[str]], key: int) -> str:
    """The function with one to all of `tokens` replaced, dropped or followed by another."""
    lines = function.text.split("\n")
    for place in reversed(chosen(len(tokens), key)):  # from the end, so that earlier columns still hold
        token, draw = tokens[place], key_of(key, place)
        local = sorted({one.text for one in tokens if one.kind == token.kind})
        choices = local if bits(draw, 0) % 2 else pool[token.kind]
        text = choices[bits(draw, 1) % len(choices)]
        way = bits(draw, 2) % 8
        text = "" if way == 0 else f"{token.text} {text}" if way == 1 else text
        line = lines[token.line - 1]
        lines[token.line - 1] = line[: token.start] + text + line[token.end :]
    return "\n".join(lines)


def chosen(tokens: int, key: int) -> list[int]:
    """Places of the tokens that noise touches: any number from one to all, in reading order."""
    count = 1 + bits(key, 2) % tokens if tokens else 0
    return sorted(shuffled(list(range(tokens)), key)[:count])


def free_tokens(function: Function) -> list[Token]:
    """Tokens in reading order that no held-out bug touches."""
    held_out = _held_out()
    return [
        token
        for token in replaceable(function.text)
        if not any(overlap((token.start, token.end), site) for site in held_out[function.path, token.line])
    ]


def replaceable(text: str) -> list[Token]:
    """Every token of code below the docstring, in reading order. A formatted string is left whole or, from Python
    3.12 on, in its parts.
    """
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = _kind(token)
        if kind and token.start[0] > HEAD_LINES:
            found.append(Token(token.start[0], token.start[1], token.end[1], token.string, kind))
    return found


def _kind(token: tokenize.TokenInfo) -> str | None:
    if token.type == tokenize.NAME:
        return "keyword" if iskeyword(token.string) else "name"
    if token.type == tokenize.NUMBER:
        return "number"
    if token.type == tokenize.OP:
        return "mark" if token.string in "()[]{}:,." else "operator"
    return "string" if token.type == tokenize.STRING else None


def _pool(tokens: Sequence[Token]) -> Mapping[str, Sequence[str]]:
    pool: dict[str, set[str]] = defaultdict(set)
    for token in tokens:
        pool[token.kind].add(token.text)
    return {kind: sorted(texts) for kind, texts in pool.items()}


def _held_out() -> Mapping[tuple[str, int], Sequence[Span]]:
    """(path, line) -> spans of columns that bugs of held-out splits change."""
    spans: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for drill in drills().values():
        if drill.split != "train":
            spans[drill.path, drill.line].append(drill.span)
    return spans
