"""The `hermes` renderer: calls as JSON between `<tool_call>` tags, as Qwen2.5 and Qwen3 write them.

    <|im_start|>assistant
    words
    <tool_call>
    {"name": "read_file", "arguments": {"path": "a.py"}}
    </tool_call><|im_end|>

Only the six tags are control tokens; `<tool_response>` may be plain text where a tokenizer has no token for it. Which
text surrounds words and results is the layout's business (`layouts`, `templates`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from composer_core import BuildContext, Column
from composer_core.errors import ConfigError
from composer_core.protocols import Tokenizer, ToolSchema
from composer_core.types import Message, ParsedTurn, ToolResult
from composer_plugin_hf.renderers.config import HERMES_TOKENS, HermesConfig
from composer_plugin_hf.renderers.layouts import END, ChatMl, Layout, Part
from composer_plugin_hf.renderers.scan import BadCall, Tags, parse_turn, strict_text
from composer_plugin_hf.renderers.templates import TemplateLayout
from composer_plugin_hf.renderers.tools import all_control, compact, control_ids

NEEDED, OPTIONAL = HERMES_TOKENS[:4], HERMES_TOKENS[4:]


def build_hermes(config: HermesConfig, build: BuildContext) -> HermesRenderer:
    tokenizer = build.get("tokenizer")
    template = getattr(tokenizer, "chat_template", None)
    if config.layout == "template" and template is None:
        raise ConfigError(
            "the tokenizer has no chat template",
            where='layout = "template" of the renderer hermes',
            fix='set layout = "auto" or "builtin"',
        )
    derived = template is not None and config.layout != "builtin"
    return HermesRenderer(tokenizer, TemplateLayout(str(template)) if derived else ChatMl(config.schemas))


class HermesRenderer:
    """`protocols.Renderer` of JSON calls over a layout."""

    def __init__(self, tokenizer: Tokenizer, layout: Layout) -> None:
        self._tokenizer, self._layout = tokenizer, layout
        self._id = control_ids("hermes", tokenizer, NEEDED)
        for token in OPTIONAL:
            self._id.update(_maybe(tokenizer, token))
        self._tags = Tags(
            call=self._id["<tool_call>"],
            close=self._id["</tool_call>"],
            end=self._id[END],
            control=all_control(tokenizer, self._id.values()),
        )
        self._cut = re.compile("(" + "|".join(map(re.escape, self._id)) + ")")

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        return self._ids(self._layout.opening(messages, tools), [(message.text, message.ids) for message in messages])

    def results(self, results: Sequence[ToolResult], ended: bool) -> list[int]:
        ids = [] if ended else [self._tags.end]
        return ids + self._ids(self._layout.results(len(results)), [(result.text, None) for result in results])

    def request(self, message: Message, ended: bool) -> list[int]:
        ids = [] if ended else [self._tags.end]
        return ids + self._ids(self._layout.request(message), [(message.text, message.ids)])

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        return parse_turn(ids, self._tags, self._tokenizer, self._read, gap="\n")

    def render(self, turn: ParsedTurn) -> list[int]:
        encode = self._tokenizer.encode
        ids = encode(turn.text + "\n" if turn.text and turn.calls else turn.text)
        for index, call in enumerate(turn.calls):
            text = compact({"name": call.name, "arguments": dict(call.arguments)})
            ids += encode("\n") if index else []
            ids += [self._tags.call, *encode(f"\n{text}\n"), self._tags.close]
        return [*ids, self._tags.end] if turn.ended else ids

    def stop_ids(self) -> frozenset[int]:
        return frozenset({self._tags.end})

    def _ids(self, parts: Sequence[Part], words: Sequence[tuple[str, Column | None]]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, str):
                ids += self._own(part)
                continue
            text, given = words[part.index]
            ids += self._tokenizer.encode(text) if given is None else list(given.values())
        return ids

    def _own(self, text: str) -> list[int]:
        """Ids of the layout's text, in which control tags are control tokens."""
        ids: list[int] = []
        for piece in self._cut.split(text):
            ids += [self._id[piece]] if piece in self._id else self._tokenizer.encode(piece)
        return ids

    def _read(self, body: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
        """Name and arguments of a call's JSON."""
        text = strict_text(self._tokenizer, body, "the call")
        try:
            call = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        except BadCall:
            raise
        except (ValueError, RecursionError) as error:
            raise BadCall(f"the call is not JSON: {error}") from error
        if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
            raise BadCall('a call is a JSON object with "name" and "arguments"')
        name, arguments = call["name"], call["arguments"]
        if not isinstance(name, str) or not name:
            raise BadCall('"name" must be the name of a tool')
        if not isinstance(arguments, dict):
            raise BadCall('"arguments" must be a JSON object')
        return name, arguments


def _maybe(tokenizer: Tokenizer, token: str) -> dict[str, int]:
    try:
        return {token: tokenizer.special(token)}
    except KeyError:
        return {}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise BadCall(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise BadCall(f"the call is not JSON: {name} is not a number")
