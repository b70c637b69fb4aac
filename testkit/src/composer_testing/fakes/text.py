"""A tokenizer of bytes and a renderer of lines: the smallest that keep the laws of their kinds.

Ids 0 to 255 are bytes; 256 ends a turn and 257 begins the policy's. A call is one line of JSON with `name` and
`arguments`; other lines are words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_core.protocols import BuildContext, Tokenizer, ToolSchema
from composer_core.types import Call, Message, ParsedTurn, ToolResult

END, TURN = 256, 257


class ByteTokenizer:
    """`protocols.Tokenizer` with one id a byte; control tokens have the ids from 256 on."""

    fingerprint = "bytes"

    def __init__(self, specials: Sequence[str] = ("<end>", "<turn>")) -> None:
        self._specials = {token: 256 + index for index, token in enumerate(specials)}
        self.vocab_size = 256 + len(self._specials)

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogateescape"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def special(self, token: str) -> int:
        return self._specials[token]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text('{"bytes": true}', encoding="utf-8")


class LineRenderer:
    """`protocols.Renderer`: messages and results as lines, calls as JSON lines."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += list(message.ids.values()) if message.ids else self._tokenizer.encode(message.text)
            ids.append(END)
        return [*ids, TURN]

    def results(self, results: Sequence[ToolResult], ended: bool) -> list[int]:
        ids = [] if ended else [END]
        for result in results:
            ids += [*self._tokenizer.encode(result.text), END]
        return [*ids, TURN]

    def request(self, message: Message, ended: bool) -> list[int]:
        return [*([] if ended else [END]), *self._tokenizer.encode(message.text), END, TURN]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        ended = bool(ids) and ids[-1] == END
        words, calls = [], []
        for number, line in enumerate(self._tokenizer.decode(ids).splitlines()):
            call = _call(line, f"c{number}")
            if call:
                calls.append(call)
            elif line:
                words.append(line)
        return ParsedTurn("\n".join(words), tuple(calls), ended)

    def render(self, turn: ParsedTurn) -> list[int]:
        lines = [line for line in [turn.text] if line]
        lines += [json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in turn.calls]
        return [*self._tokenizer.encode("\n".join(lines)), END]

    def stop_ids(self) -> frozenset[int]:
        return frozenset({END})


def _call(line: str, call_id: str) -> Call | None:
    if not line.startswith("{"):
        return None
    try:
        data = json.loads(line)
        return Call(call_id, str(data["name"]), dict(data["arguments"]))
    except (ValueError, KeyError, TypeError) as error:
        return Call(call_id, "", {}, problem="malformed", detail=f"a call is a line of JSON: {error}")


def build_tokenizer(config: Any, build: BuildContext) -> ByteTokenizer:
    return ByteTokenizer()


def build_renderer(config: Any, build: BuildContext) -> LineRenderer:
    return LineRenderer(build.get("tokenizer"))


def no_policy(config: Any, build: BuildContext) -> Any:
    raise NotImplementedError("the fakes have no network; use fakes/simulated as the trainer")
