"""Tables of settings out of attrs classes: key, type, default and the sentence under each field.

Used by `tools/docs.py`. A row is made from the class alone, so a table cannot say what the code does not.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from composer_core.config import Component, RunConfig

TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any"}
SECTIONS = {
    "tools": "tools",
    "rewards": "rewards",
    "stages": "stages",
    "evaluations": "evaluations",
    "limits": "limits",
    "sandbox_limits": "sandbox-limits",
    "network": "network",
    "checkpoints": "checkpoints",
}
"""Keys of a run file that have a table of their own on the page, by its heading."""


def table_of(cls: type) -> str:
    return markdown_table(("key", "type", "default", "meaning"), rows_of(cls))


def rows_of(cls: type, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default and meaning of each field; a nested config's keys follow with their path."""
    meanings = docstrings_of(cls)
    for field in attrs.fields(attrs.resolve_types(cls)):
        hint: Any = field.type
        if attrs.has(hint) and prefix + field.name not in SECTIONS and hint is not Component:
            yield from rows_of(hint, f"{prefix}{field.name}.")
            continue
        bounds = "; ".join(bounds_of(field.validator))
        shown = type_of(hint) + (f", {bounds}" if bounds else "")
        meaning = meanings.get(field.name, "")
        if cls is RunConfig and field.name in SECTIONS:
            meaning += f" See [below](#{SECTIONS[field.name]})."
        yield f"`{prefix}{field.name}`", shown, default_of(field), meaning


def docstrings_of(cls: type) -> dict[str, str]:
    """The text under each field, inherited ones too, which Python itself does not keep."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__attrs_attrs__" in vars(base):
            found |= _docstrings_in(base)
    return found


def _docstrings_in(cls: type) -> dict[str, str]:
    (node,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            value = following.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[ast.unparse(statement.target)] = " ".join(value.value.split())
    return found


def type_of(hint: Any) -> str:
    """A type in the words of a run file."""
    if hint in TYPES:
        return TYPES[hint]
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_of(option) for option in options if option is not types.NoneType)
    if origin is tuple:
        return "list of " + {"table": "tables", "component": "components"}.get(one := type_of(options[0]), one)
    return "component" if hint is Component else "table"


def default_of(field: Any) -> str:
    """A default as TOML would write it."""
    value = field.default
    if value is attrs.NOTHING:
        return "required"
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        if value.takes_self:
            return "made of other settings"
        value = value.factory()
    if value is None:
        return "not set"
    if attrs.has(type(value)) and not isinstance(value, Component):
        return "its defaults"
    text = f"`{toml(value)}`"
    return f"{text} ({value >> 20} MiB)" if field.name.endswith("_bytes") and value % (1 << 20) == 0 else text


def toml(value: Any) -> str:
    if isinstance(value, Component):
        return toml(value.use)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {toml(one)}" for name, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    return json.dumps(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)


def bounds_of(validator: Any) -> list[str]:
    """What attrs' own validators say of a range or a choice."""
    if hasattr(validator, "_validators"):
        return [text for one in validator._validators for text in bounds_of(one)]
    if hasattr(validator, "options"):
        return ["one of " + ", ".join(f"`{option}`" for option in validator.options)]
    if hasattr(validator, "bound") and validator.bound != float("inf"):
        return [f"{validator.compare_op} {validator.bound}"]
    return []


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
