"""A table of every key of a run file, with what the file says and the sentence of the field that it sets.

Used by `tools/docs.py`. Meanings come from the config classes of whatever the file chooses, so a file with a key that
no class has cannot be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from docs_settings import docstrings_of, markdown_table, rows_of, toml

from composer_core import config
from composer_core.choices import SINGLE
from composer_core.records import Spec
from composer_core.types import Limits

Specs = Mapping[str, Spec]
TABLES = {
    "tools": config.ToolsConfig,
    "limits": Limits,
    "sandbox_limits": config.SandboxLimits,
    "evaluations": config.EvaluationSet,
}


def keys_table(data: Mapping[str, Any], specs: Specs) -> str:
    """`specs` are components by id. Keys of a list's entries share a row, which holds every value.

    Raises:
        KeyError: a key is none of what the file chooses.
    """
    found: dict[str, tuple[dict[str, None], str]] = {}
    for key, value, meaning in _rows(data, specs):
        found.setdefault(key, ({}, meaning))[0][toml(value)] = None
    rows = ((f"`{key}`", ", ".join(f"`{one}`" for one in values), meaning) for key, (values, meaning) in found.items())
    return markdown_table(("key", "here", "meaning"), rows)


def _rows(data: Mapping[str, Any], specs: Specs) -> Iterator[tuple[str, Any, str]]:
    top = docstrings_of(config.RunConfig)
    for key, value in data.items():
        if not isinstance(value, Mapping) and not (isinstance(value, list) and isinstance(value[0], Mapping)):
            yield key, value, top[key]
        elif key == "samplers":
            for name, choice in value.items():
                yield from _table(f"{key}.{name}", choice, _meanings(choice, specs) | {"use": top[key]})
        else:
            for entry in value if isinstance(value, list) else [value]:
                yield from _table(
                    key, entry, _of(key, entry, data, specs) | ({"use": top[key]} if _chosen(key) else {})
                )


def _chosen(key: str) -> bool:
    return key in (*SINGLE.values(), "rewards", "trackers")


def _of(key: str, entry: Mapping[str, Any], data: Mapping[str, Any], specs: Specs) -> dict[str, str]:
    """What the keys of one table mean."""
    if key in TABLES:
        return _of_classes([TABLES[key]])
    if key == "stages":
        own = getattr(specs[data["trainer"]["use"]], "stage_config", None)
        return _of_classes([config.STAGES[entry["kind"]], *([own] if own else [])])
    return _meanings(entry, specs)


def _meanings(choice: Mapping[str, Any], specs: Specs) -> dict[str, str]:
    return _of_classes([specs[choice["use"]].config])


def _of_classes(classes: Iterable[type]) -> dict[str, str]:
    return {row[0].strip("`"): row[3] for cls in classes for row in rows_of(cls)}


def _table(prefix: str, table: Mapping[str, Any], meanings: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """A nested table's keys follow with their path, unless it is a value as a whole."""
    for key, value in table.items():
        if isinstance(value, Mapping) and key not in meanings:
            inner = {name.removeprefix(f"{key}."): text for name, text in meanings.items()}
            yield from _table(f"{prefix}.{key}", value, inner)
        else:
            yield f"{prefix}.{key}", value, meanings[key]
