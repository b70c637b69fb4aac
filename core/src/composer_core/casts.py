"""Values of a tool's arguments: the JSON type of a hint, and the cast of what a model wrote to that hint.

A wire format that carries text only gives "3", "true", "null" and JSON text; those become values where the hint says
so. Nothing is guessed beyond that: a number where text is expected, or text that is no number, is a `Mismatch`.
"""

from __future__ import annotations

import ast
import json
import math
import re
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

import attrs

INTEGER = re.compile(r"[+-]?\d{1,4000}", re.ASCII)
SHOWN_CHARS = 60
JSON_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}
WORDS = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


class Mismatch(ValueError):
    """A value that does not fit; `where` is the path below the argument, such as "[2].status"."""

    def __init__(self, expected: str, value: Any, where: str = "") -> None:
        shown = value if isinstance(value, str) else json.dumps(value, default=repr)
        shown = shown if len(shown) <= SHOWN_CHARS else shown[:SHOWN_CHARS] + "..."
        found = repr(shown) if isinstance(value, str) else shown
        super().__init__(f"{where} must be {expected}, found {found}")
        self.expected, self.found, self.where = expected, found, where

    def below(self, step: str) -> Mismatch:
        self.where = step + self.where
        return self


def json_type(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type hint; TypeError if there is none."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in JSON_NAMES:
        return {"type": JSON_NAMES[hint]}
    if origin is Literal:
        return {"enum": list(options)}
    if origin in (Union, types.UnionType):
        return _union_type(options)
    return _row_type(hint) if _is_row(hint) else _container_type(hint, origin, options)


def _container_type(hint: Any, origin: Any, options: tuple[Any, ...]) -> dict[str, Any]:
    if list in (hint, origin):
        return {"type": "array", **({"items": json_type(options[0])} if options else {})}
    if hint is dict or (origin is dict and options[0] is str):
        return {"type": "object", **({"additionalProperties": json_type(options[1])} if options else {})}
    raise TypeError(repr(hint))


def _row_type(hint: Any) -> dict[str, Any]:
    hints, required = _row(hint)
    properties = {name: json_type(item) for name, item in hints.items()}
    return {"type": "object", "properties": properties, "required": [name for name in hints if name in required]}


def _union_type(options: tuple[Any, ...]) -> dict[str, Any]:
    kinds = [json_type(option) for option in options if option is not types.NoneType]
    if types.NoneType not in options:
        return {"anyOf": kinds}
    if len(kinds) == 1 and isinstance(kinds[0].get("type"), str):
        return {**kinds[0], "type": [kinds[0]["type"], "null"]}
    return {"anyOf": [*kinds, {"type": "null"}]}


def cast(hint: Any, value: Any) -> Any:
    """`value` as `hint` says; raises Mismatch."""
    if hint is Any or hint in SCALARS:
        return SCALARS[hint](value) if hint in SCALARS else value
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _cast_literal(options, value)
    if origin in (Union, types.UnionType):
        return _cast_union(options, value)
    if _is_row(hint):
        return _cast_row(hint, value)
    if list in (hint, origin):
        return _cast_list(options[0] if options else Any, value)
    return _cast_dict(options[1] if options else Any, value)


def exact(value: Any, found: Any) -> None:
    """Refuse a value that only a guess made `found`: text is a value of another type only as that value's JSON.

    Raises:
        Mismatch: it is another spelling (True, ' 3', a Python literal), or a number of another type (3.0 for 3).
    """
    if isinstance(value, str) and not isinstance(found, str):
        try:
            told = json.loads(value)
        except (ValueError, RecursionError):
            told = value
        if told is value or value != value.strip():
            raise Mismatch("written as JSON", value)
        value = told
    if isinstance(found, (bool, int)) and type(value) is not type(found):
        raise Mismatch(WORDS[JSON_NAMES[type(found)]], value)


def _cast_text(value: Any) -> str:
    if not isinstance(value, str):
        raise Mismatch(WORDS["string"], value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Mismatch("text without lone surrogates", value) from None
    return value


def _cast_int(value: Any) -> int:
    if isinstance(value, str) and INTEGER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Mismatch(WORDS["integer"], value)
    return value


def _cast_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise Mismatch(WORDS["number"], value)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise Mismatch(WORDS["number"], value) from None
    if not math.isfinite(number):
        raise Mismatch(WORDS["number"], value)
    return number


def _cast_bool(value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise Mismatch(WORDS["boolean"], value)
    return value


SCALARS: Mapping[Any, Callable[[Any], Any]] = {str: _cast_text, int: _cast_int, float: _cast_float, bool: _cast_bool}


def _cast_literal(options: tuple[Any, ...], value: Any) -> Any:
    for option in options:
        if (type(value) is type(option) and value == option) or (isinstance(value, str) and value == str(option)):
            return option
    raise Mismatch(f"one of {', '.join(map(str, options))}", value)


def _cast_union(options: tuple[Any, ...], value: Any) -> Any:
    if types.NoneType in options and value in (None, "null", "None"):
        return None
    kinds = [option for option in options if option is not types.NoneType]
    expected = []
    for kind in kinds:
        try:
            return cast(kind, value)
        except Mismatch as error:
            if len(kinds) == 1:
                raise
            expected.append(error.expected)
    raise Mismatch(" or ".join(expected), value)


def _cast_list(hint: Any, value: Any) -> list[Any]:
    items = _structured(value)
    if not isinstance(items, (list, tuple)):
        raise Mismatch("a list (JSON)", value)
    return [_step(f"[{index}]", hint, item) for index, item in enumerate(items)]


def _cast_dict(hint: Any, value: Any) -> dict[str, Any]:
    items = _structured(value)
    if not isinstance(items, Mapping) or not all(isinstance(key, str) for key in items):
        raise Mismatch("an object (JSON) with text keys", value)
    return {key: _step(f"[{key!r}]", hint, item) for key, item in items.items()}


def _cast_row(hint: Any, value: Any) -> Any:
    if attrs.has(hint) and isinstance(value, hint):
        return value
    hints, required = _row(hint)
    items = _structured(value)
    if not isinstance(items, Mapping) or not set(items) <= set(hints) or not required <= set(items):
        words = [name if name in required else f"{name} (optional)" for name in hints]
        raise Mismatch(f"an object (JSON) with {', '.join(words)}", value)
    fields = {name: _step(f".{name}", hints[name], item) for name, item in items.items()}
    return hint(**fields)


def _step(where: str, hint: Any, value: Any) -> Any:
    try:
        return cast(hint, value)
    except Mismatch as error:
        raise error.below(where) from None


def _structured(value: Any) -> Any:
    """JSON text, or the Python literal that models write in its place, as a value; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the model's escapes, not ours
            return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return value


def _is_row(hint: Any) -> bool:
    return isinstance(hint, type) and (typing.is_typeddict(hint) or attrs.has(hint))


def _row(hint: Any) -> tuple[dict[str, Any], set[str]]:
    """The fields of a TypedDict or an attrs class, and which of them must be given."""
    hints = typing.get_type_hints(hint)
    if typing.is_typeddict(hint):
        # __required_keys__ does not see NotRequired in a module with postponed annotations
        marked = typing.get_type_hints(hint, include_extras=True)
        optional = {name for name, item in marked.items() if typing.get_origin(item) is typing.NotRequired}
        return hints, set(hint.__required_keys__) - optional
    fields = [field for field in attrs.fields(hint) if field.init]
    required = {field.name for field in fields if field.default is attrs.NOTHING}
    return {field.name: hints[field.name] for field in fields}, required
