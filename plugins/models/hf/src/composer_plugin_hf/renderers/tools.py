"""How an opening describes the run's tools, and the lookup of a renderer's control tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from composer_core.errors import ConfigError
from composer_core.protocols import Tokenizer, ToolSchema

THOUGHT = ("<think>", "</think>")
"""Tokens that many models write around reasoning, which is words."""


def as_function(tool: ToolSchema) -> dict[str, Any]:
    """The tool in the form that chat templates expect."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def described(tools: Sequence[ToolSchema], schemas: str) -> str:
    """Text of the opening; empty for `none` or when there are no tools."""
    if schemas == "none" or not tools:
        return ""
    if schemas == "names":
        return "tools: " + " ".join(tool.name for tool in tools)
    return "\n".join(["tools:", *(compact(as_function(tool)["function"]) for tool in tools)])


def compact(value: Any) -> str:
    """JSON of one line, characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def control_ids(renderer: str, tokenizer: Tokenizer, tokens: Iterable[str]) -> dict[str, int]:
    """The ids of control tags; ConfigError names those that the tokenizer lacks."""
    found: dict[str, int] = {}
    missing = []
    for token in tokens:
        try:
            found[token] = tokenizer.special(token)
        except KeyError:
            missing.append(token)
    if missing:
        raise ConfigError(
            f"the tokenizer lacks control tokens of the renderer {renderer!r}",
            expected="each tag is one control token",
            found=f"none for {' '.join(missing)}",
            fix="choose a renderer made for this tokenizer, or train the tokenizer with this renderer",
        )
    return found


def all_control(tokenizer: Tokenizer, own: Iterable[int]) -> frozenset[int]:
    """The tokenizer's control ids where it tells them, else the renderer's own; marks of thought are words."""
    specials = getattr(tokenizer, "specials", None)
    told = specials() if specials else {}
    return frozenset(own) | frozenset(id for token, id in told.items() if token not in THOUGHT)
