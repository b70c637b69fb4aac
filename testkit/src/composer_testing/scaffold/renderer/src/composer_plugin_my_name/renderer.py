"""Messages and turns as plain text; two control tokens give them their structure.

    user: repair it<|end|>agent:
    Let me look.<|call|>{"name": "read", "arguments": {"path": "a.py"}}<|end|>result: x = 1<|end|>agent:

Text from people, files and tools is encoded with control tokens disabled, so no text can end a turn or begin a call.
"""

import json
from collections.abc import Sequence
from typing import Any

from composer_core import BuildContext, NoConfig
from composer_core.errors import ConfigError
from composer_core.protocols import Tokenizer, ToolSchema
from composer_core.types import Call, Message, ParsedTurn, ToolResult
from composer_plugin_my_name.plugin import CALL, END


class MyNameRenderer:
    """`protocols.Renderer`: writes increments only; what the policy sampled is never encoded again."""

    def __init__(self, config: NoConfig, build: BuildContext) -> None:
        self._tokenizer: Tokenizer = build.get("tokenizer")
        try:
            self._call, self._end = (self._tokenizer.special(tag) for tag in (CALL, END))
        except KeyError as error:
            raise ConfigError(f"the tokenizer has no control token {error}", fix="choose another renderer") from error

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """The tools as one message, the messages, the start of the policy's turn."""
        listed = "\n".join(json.dumps([tool.name, tool.description, tool.parameters], default=dict) for tool in tools)
        ids = self._block("tools", self._tokenizer.encode(listed)) if tools else []
        for message in messages:
            ids += self._message(message)
        return [*ids, *self._turn()]

    def results(self, results: Sequence[ToolResult], ended: bool) -> list[int]:
        """What follows a turn; one that a limit cut off is closed first."""
        ids = [] if ended else [self._end]
        for result in results:
            ids += self._block("result", self._tokenizer.encode(result.text))
        return [*ids, *self._turn()]

    def request(self, message: Message, ended: bool) -> list[int]:
        """As `results`, with a message in their place."""
        return [*([] if ended else [self._end]), *self._message(message), *self._turn()]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        """Cut at control tokens, never at text. Any ids give a turn: what cannot be read is a call with a problem."""
        closed = self._end in ids
        pieces: list[list[int]] = [[]]
        for token in ids[: list(ids).index(self._end)] if closed else ids:
            if token == self._call:
                pieces.append([])
            else:
                pieces[-1].append(token)
        words, *bodies = pieces
        calls = [self._read(f"c{at}", body, closed or at + 1 < len(bodies)) for at, body in enumerate(bodies)]
        return ParsedTurn(self._tokenizer.decode(words), tuple(calls), closed and ids[-1] == self._end)

    def render(self, turn: ParsedTurn) -> list[int]:
        """The canonical ids of a turn: what a demonstrator samples."""
        ids = self._tokenizer.encode(turn.text)
        for call in turn.calls:
            body = {"name": call.name, "arguments": dict(call.arguments)}
            ids += [self._call, *self._tokenizer.encode(json.dumps(body, ensure_ascii=False))]
        return [*ids, self._end] if turn.ended else ids

    def stop_ids(self) -> frozenset[int]:
        """Where a sampler stops."""
        return frozenset({self._end})

    def _block(self, tag: str, ids: Sequence[int]) -> list[int]:
        return [*self._tokenizer.encode(f"{tag}: "), *ids, self._end]

    def _message(self, message: Message) -> list[int]:
        """A message that is given as ids is spliced as it is."""
        ids = self._tokenizer.encode(message.text) if message.ids is None else message.ids.values()
        return self._block(message.role, ids)

    def _turn(self) -> list[int]:
        return self._tokenizer.encode("agent:\n")

    def _read(self, call_id: str, body: list[int], closed: bool) -> Call:
        """One call; the detail of a problem is what the model reads."""
        text = self._tokenizer.decode(body)
        try:
            if "\ufffd" in text and self._tokenizer.encode(text) != body:
                raise ValueError("its bytes are no UTF-8")
            name, arguments = _fields(json.loads(text))
        except (ValueError, RecursionError) as error:
            if closed:
                return Call(call_id, "", {}, problem="malformed", detail=f"the call cannot be read: {error}")
            return Call(call_id, "", {}, problem="truncated", detail="the turn was cut off inside this call")
        return Call(call_id, name, arguments)


def _fields(data: Any) -> tuple[str, dict[str, Any]]:
    match data:
        case {"name": str(name), "arguments": dict(arguments), **rest} if name and not rest:
            return name, arguments
    raise ValueError('expected {"name": "a tool", "arguments": {...}}')
