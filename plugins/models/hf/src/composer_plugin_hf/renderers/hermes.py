"""The `hermes` renderer: calls as JSON between `<tool_call>` tags, as Qwen2.5 and Qwen3 write them.

<|im_start|>assistant
words
<tool_call>
{"name": "read_file", "arguments": {"path": "a.py"}}
</tool_call><|im_end|>
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from composer_core import BuildContext
from composer_core.types import Call
from composer_plugin_hf.renderers.config import HermesConfig
from composer_plugin_hf.renderers.layouts import ChatMl
from composer_plugin_hf.renderers.loose_json import values_of
from composer_plugin_hf.renderers.scan import BadCall, Reading
from composer_plugin_hf.renderers.tagged import TaggedRenderer, build
from composer_plugin_hf.renderers.tools import compact

BEGINNING = re.compile(r"^\s*\{", re.MULTILINE)


def build_hermes(config: HermesConfig, context: BuildContext) -> TaggedRenderer:
    return build(JsonBody(), ChatMl, config, context)


class JsonBody:
    """`tagged.Body`: {"name": ..., "arguments": {...}} on one line."""

    name = "hermes"
    howto = """
Call a tool like this, as often as needed in one turn:
<tool_call>
{"name": "tool", "arguments": {"key": "value"}}
</tool_call>"""

    def write(self, call: Call) -> str:
        return f"\n{compact({'name': call.name, 'arguments': dict(call.arguments)})}\n"

    def read(self, text: str) -> Sequence[Reading]:
        values, repair = values_of(text)
        return [_call(value, repair) for value in values]

    def begins(self, text: str) -> Iterator[int]:
        return (found.start() for found in BEGINNING.finditer(text))


def _call(value: Any, repair: str) -> Reading:
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        raise BadCall('a call is a JSON object with "name" and "arguments"')
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not name:
        raise BadCall('"name" must be the name of a tool')
    if isinstance(arguments, str):
        arguments, repair = _unpacked(arguments), "; ".join(filter(None, (repair, "the arguments are JSON in a text")))
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        raise BadCall('"arguments" must be a JSON object')
    return Reading(name, arguments, repair)


def _unpacked(text: str) -> Any:
    values, _ = values_of(text)
    return values[0] if len(values) == 1 else None
