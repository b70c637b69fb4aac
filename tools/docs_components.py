"""A section for each component of a kind, made from its record and its code. Makers for `tools/docs.py`.

Renderers are shown by what they write: one short conversation, rendered by each and decoded again with all its tags.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
from docs_settings import markdown_table, table_of
from docs_source import fence

from composer_core import BuildContext
from composer_core.protocols import ToolSchema
from composer_core.records import AlgorithmSpec, RendererSpec, Spec, ToolSpec, resolve
from composer_core.registry import Entry
from composer_core.toolbox import Tool
from composer_core.types import Call, Message, ParsedTurn, ToolResult
from composer_plugin_hf.tokenizer import HfTokenizer, train

SAID = ParsedTurn("I look first.", (Call("c0", "read_file", {"path": "a.py"}),))
RESULT = ToolResult("c0", "read_file", "x = 1")
SHOWN = ToolSchema(
    "read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


def sections(kind: str, entries: Iterable[Entry]) -> str:
    """Every component of a kind, by id; those that only pretend, for tests, apart."""
    of_kind = [entry for entry in entries if entry.spec.kind == kind and entry.plugin != "fakes"]
    special = dict.fromkeys(tag for entry in of_kind for tag in getattr(entry.spec, "special_tokens", ()))
    parts = []
    for entry in of_kind:
        body = renderer(entry.spec, tuple(special)) if kind == "renderers" else BODIES[kind](entry.spec)
        settings = table_of(entry.spec.config) if attrs.fields(entry.spec.config) else "It has no settings."
        parts += [f"## `{entry.id}`", *body, settings]
    return "\n\n".join(parts)


def algorithm(spec: Spec) -> list[str]:
    """Its two functions in their own words."""
    assert isinstance(spec, AlgorithmSpec)
    clipped = f" Its clip acts on the ratio to `{spec.clips}`." if spec.clips else ""
    return [
        f"{_sentence(spec.summary)} It reads {', '.join(f'`{name}`' for name in sorted(spec.needs))}.{clipped}",
        f"**Advantage**\n\n{_doc(spec.advantage)}",
        f"**Objective**\n\n{_doc(spec.objective)}",
    ]


def tool(spec: Spec) -> list[str]:
    """What the model is told, and what it is not."""
    assert isinstance(spec, ToolSpec)
    schema = Tool.of(spec.name, spec, resolve(spec.function), None).schema
    ends = ", ends the episode" if spec.ends else ""
    needs = f", needs {', '.join(f'`{name}`' for name in spec.needs)} in the sandbox" if spec.needs else ""
    required = schema.parameters.get("required", ())
    rows = [
        (f"`{name}`", _type(one), "" if name in required else "may be left out", one.get("description", ""))
        for name, one in schema.parameters["properties"].items()
    ]
    table = markdown_table(("argument", "type", "", "meaning"), rows) if rows else "It has no arguments."
    return [f"Effect `{spec.effect}`{ends}{needs}.", schema.description, table]


def renderer(spec: Spec, special: tuple[str, ...]) -> list[str]:
    """One turn in its wire format, from the opening to the start of the next turn."""
    assert isinstance(spec, RendererSpec)
    tokenizer = _tokenizer(special)
    held = {"tokenizer": tokenizer, "tools": SimpleNamespace(schemas=[SHOWN])}
    made: Any = resolve(spec.factory)(spec.config(), BuildContext(Path(), get=held.__getitem__))
    ids = [
        *made.open([Message("user", "What is x?")], [SHOWN]),
        *made.render(SAID),
        *made.results([RESULT], ended=True),
    ]
    return [_sentence(spec.summary), fence("text", tokenizer.decode(ids))]


BODIES: Mapping[str, Callable[[Spec], list[str]]] = {"algorithms": algorithm, "tools": tool}


def _tokenizer(special: tuple[str, ...]) -> HfTokenizer:
    return train(["a word"], 256 + len(special), special)


def _doc(function: Any) -> str:
    found = inspect.getdoc(resolve(function))
    assert found, function
    return found


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _type(schema: Mapping[str, Any]) -> str:
    told = {key: value for key, value in schema.items() if key not in ("description", "default")}
    return f"`{told['type']}`" if set(told) == {"type"} else f"`{json.dumps(told)}`"
