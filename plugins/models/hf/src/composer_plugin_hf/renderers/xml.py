"""The `xml` renderer: every tag is one control token, so a small policy spends its tokens on the work.

    <|user|>words<|agent|>words<call>name<arg>key<val>value</call><|end|><result>text<result>text<|agent|>

A result needs no closing tag: its text cannot hold a control token, so the next tag ends it. Values are text, JSON for
what is not text; `schema.bind` casts them back by the tool's types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from composer_core import BuildContext
from composer_core.protocols import Tokenizer, ToolSchema
from composer_core.types import Message, ParsedTurn, ToolResult
from composer_plugin_hf.renderers.config import XML_TOKENS, XmlConfig
from composer_plugin_hf.renderers.scan import BadCall, Parser, Reading, Tags, split, strict_text
from composer_plugin_hf.renderers.tools import all_control, compact, control_ids, described

ROLES = {"system": "<|system|>", "user": "<|user|>", "summary": "<|summary|>"}


def build_xml(config: XmlConfig, build: BuildContext) -> XmlRenderer:
    return XmlRenderer(build.get("tokenizer"), config.schemas)


class XmlRenderer:
    """`protocols.Renderer` over single-token tags."""

    def __init__(self, tokenizer: Tokenizer, schemas: str = "names") -> None:
        self._tokenizer, self._schemas = tokenizer, schemas
        self._id = control_ids("xml", tokenizer, XML_TOKENS)
        self._tags = Tags(
            call=self._id["<call>"],
            close=self._id["</call>"],
            ends=frozenset({self._id["<|end|>"]}),
            inside=frozenset({self._id["<arg>"], self._id["<val>"]}),
            control=all_control(tokenizer, self._id.values()),
        )
        self._end = self._id["<|end|>"]
        self._parser = Parser(self._tags, tokenizer, self)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        text = described(tools, self._schemas)
        ids = [self._id["<|system|>"], *self._tokenizer.encode(text)] if text else []
        for message in messages:
            ids += self._message(message)
        return [*ids, self._id["<|agent|>"]]

    def results(self, results: Sequence[ToolResult], ended: bool) -> list[int]:
        ids = [] if ended else [self._end]
        for result in results:
            ids += [self._id["<result>"], *self._tokenizer.encode(result.text)]
        return [*ids, self._id["<|agent|>"]]

    def request(self, message: Message, ended: bool) -> list[int]:
        ids = [] if ended else [self._end]
        return [*ids, *self._message(message), self._id["<|agent|>"]]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        return self._parser.parse(ids)

    def render(self, turn: ParsedTurn) -> list[int]:
        encode = self._tokenizer.encode
        ids = encode(turn.text)
        for call in turn.calls:
            ids += [self._tags.call, *encode(call.name)]
            for key, value in call.arguments.items():
                text = value if isinstance(value, str) else compact(value)
                ids += [self._id["<arg>"], *encode(key), self._id["<val>"], *encode(text)]
            ids.append(self._tags.close)
        return [*ids, self._end] if turn.ended else ids

    def stop_ids(self) -> frozenset[int]:
        return self._tags.ends

    def _message(self, message: Message) -> list[int]:
        words = self._tokenizer.encode(message.text) if message.ids is None else list(message.ids.values())
        return [self._id[ROLES[message.role]], *words]

    def read(self, ids: tuple[int, ...]) -> Sequence[Reading]:
        """`scan.Inside`: name (<arg> key <val> value)*."""
        head, *pairs = split(ids, self._id["<arg>"])
        if self._id["<val>"] in head:
            raise BadCall("a value stands before the first argument's name")
        name = strict_text(self._tokenizer, head, "the tool's name")
        if not name:
            raise BadCall("the call has no tool name")
        arguments: dict[str, Any] = {}
        for pair in pairs:
            key, value = self._pair(pair)
            if key in arguments:
                raise BadCall(f"argument {key!r} is given twice")
            arguments[key] = value
        return [Reading(name, arguments)]

    def unopened(self, ids: tuple[int, ...]) -> tuple[str, Sequence[Reading]]:
        """`scan.Inside`; never asked: a policy that learns this format from nothing is to learn it whole."""
        raise BadCall("this format mends nothing")

    def _pair(self, pair: tuple[int, ...]) -> tuple[str, str]:
        key_ids, *values = split(pair, self._id["<val>"])
        key = strict_text(self._tokenizer, key_ids, "an argument's name")
        if not key:
            raise BadCall("an argument has no name")
        if len(values) != 1:
            raise BadCall(f"argument {key!r} has {'more than one' if values else 'no'} value")
        return key, strict_text(self._tokenizer, values[0], f"the value of {key!r}")
