"""JSON as policies write it: what is almost JSON is read, and said to be mended.

Mended are: values one after the other, raw line ends inside strings, brackets that are missing at the end, and a Python
literal in place of JSON. A key that is given twice, and a number that is none, stay errors: nothing is guessed.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator
from typing import Any

from composer_plugin_hf.renderers.scan import BadCall

CLOSERS = {"{": "}", "[": "]"}
MOST_CLOSERS = 8
"""Brackets that are added at most; more are missing from what is no slip."""
UNREADABLE = (ValueError, RecursionError)


def values_of(text: str) -> tuple[list[Any], str]:
    """The JSON values of a text, of which there is at least one, and what was mended ("" if nothing).

    Raises:
        BadCall: it is no JSON, nor almost.
    """
    try:
        return [_decoder().decode(text.strip(" \t\r\n"))], ""
    except UNREADABLE as error:
        first = error
    for mend in (_in_a_row, _raw_strings, _closed, _python):
        try:
            return mend(text)
        except (*UNREADABLE, SyntaxError, MemoryError, TypeError):
            continue
    raise BadCall(f"the call is not JSON: {first}") from first


def _decoder(strict: bool = True) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, strict=strict)


def _in_a_row(text: str) -> tuple[list[Any], str]:
    found, at, decoder = [], 0, _decoder()
    while rest := text[at:].lstrip(" \t\r\n,"):
        at = len(text) - len(rest)
        value, length = decoder.raw_decode(rest)
        found.append(value)
        at += length
    if not found or not all(isinstance(value, dict) for value in found):
        raise ValueError("no objects")
    return found, "several calls stand between one pair of tags"


def _raw_strings(text: str) -> tuple[list[Any], str]:
    return [_decoder(strict=False).decode(text.strip())], "line ends stand unescaped in a string"


def _closed(text: str) -> tuple[list[Any], str]:
    missing = "".join(_missing(text))
    if not 0 < len(missing) <= MOST_CLOSERS:
        raise ValueError("not closed, and not to be closed")
    return [_decoder(strict=False).decode(text.strip() + missing)], f"{missing} is missing at the end"


def _missing(text: str) -> Iterator[str]:
    """The closing brackets that the text lacks at its end; ValueError if it ends inside a string."""
    opened: list[str] = []
    inside = escaped = False
    for char in text:
        if inside:
            inside, escaped = escaped or char != '"', char == "\\" and not escaped
        elif char == '"':
            inside = True
        elif char in CLOSERS:
            opened.append(CLOSERS[char])
        elif char in CLOSERS.values() and (not opened or opened.pop() != char):
            raise ValueError("brackets do not match")
    if inside:
        raise ValueError("it ends inside a string")
    return reversed(opened)


def _python(text: str) -> tuple[list[Any], str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the policy's escapes, not ours
        value = ast.literal_eval(text.strip())
    json.dumps(value, allow_nan=False)  # what JSON cannot hold is no argument
    return [value], "a Python literal stands in place of JSON"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise BadCall(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise BadCall(f"the call is not JSON: {name} is not a number")
