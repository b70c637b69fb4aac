"""Documents that teach to copy and to restore: a known file with tokens replaced, its body as it is and as it was.

It is pre-training on correct text under noise, in the way of denoising autoencoders (BART, Lewis et al. 2020): nothing
runs, nothing is validated, and a policy learns to follow what it remembers where that differs from what it has just
read. A replacement is drawn from tokens of the same kind in the library. Edit sites of held-out splits stay untouched.
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

MOST_REPLACED = 10


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
    """`variants` noisy documents of every function, variant by variant."""
    free = {function.path: free_tokens(function) for function in known}
    pool = _pool([token for tokens in free.values() for token in tokens])
    for variant in range(variants):
        for function in known:
            noisy = _noisy(function, free[function.path], pool, variant)
            if noisy != function.text:
                yield f"{function.path}\n{noisy}old\n{body(noisy)}\nnew\n{body(function.text)}\n"


def _noisy(function: Function, tokens: Sequence[Token], pool: Mapping[str, Sequence[str]], variant: int) -> str:
    """The function with up to MOST_REPLACED of `tokens` replaced."""
    key = key_of("restoring", function.path, variant)
    count = 1 + bits(key, 0) % MOST_REPLACED
    order = shuffled(list(range(len(tokens))), key)[:count]
    lines = function.text.split("\n")
    for place in sorted(order, reverse=True):  # from the end, so that earlier columns still hold
        token = tokens[place]
        local = sorted({one.text for one in tokens if one.kind == token.kind})
        choices = local if bits(key, 2 * place + 1) % 2 else pool[token.kind]
        text = choices[bits(key, 2 * place + 2) % len(choices)]
        line = lines[token.line - 1]
        lines[token.line - 1] = line[: token.start] + text + line[token.end :]
    return "\n".join(lines)


def free_tokens(function: Function) -> list[Token]:
    """Tokens in reading order that no held-out bug touches."""
    held_out = _held_out()
    return [
        token
        for token in replaceable(function.text)
        if not any(overlap((token.start, token.end), site) for site in held_out[function.path, token.line])
    ]


def replaceable(text: str) -> list[Token]:
    """Names, numbers and operators below the docstring, in reading order."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = _kind(token)
        if kind and token.start[0] > HEAD_LINES:
            found.append(Token(token.start[0], token.start[1], token.end[1], token.string, kind))
    return found


def _kind(token: tokenize.TokenInfo) -> str | None:
    if token.type == tokenize.NAME and not iskeyword(token.string):
        return "name"
    if token.type == tokenize.NUMBER:
        return "number"
    return "operator" if token.type == tokenize.OP and token.string not in "()[]{}:,." else None


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
