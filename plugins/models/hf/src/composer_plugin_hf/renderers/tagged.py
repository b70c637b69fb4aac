"""Renderers whose calls are text between `<tool_call>` and `</tool_call>`, in ChatML turns.

Only the six tags are control tokens; `<tool_response>` may be plain text where a tokenizer has no token for it. Which
text surrounds words and results is the layout's business (`layouts`, `templates`), how a call is written a `Body`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from composer_core import BuildContext, Column
from composer_core.errors import ConfigError
from composer_core.protocols import Tokenizer, ToolSchema
from composer_core.types import Call, Message, ParsedTurn, ToolResult
from composer_plugin_hf.renderers.config import CHATML_TOKENS, LayoutConfig
from composer_plugin_hf.renderers.layouts import END, ChatMl, Layout, Part
from composer_plugin_hf.renderers.scan import BadCall, Parser, Reading, Tags, strict_text
from composer_plugin_hf.renderers.templates import TemplateLayout
from composer_plugin_hf.renderers.tools import all_control, control_ids

NEEDED, OPTIONAL = CHATML_TOKENS[:4], CHATML_TOKENS[4:]


class Body(Protocol):
    """How calls are written between their tags."""

    @property
    def name(self) -> str:
        """Of the renderer."""
        ...

    @property
    def howto(self) -> str:
        """Told to the policy below the tools where no chat template does."""
        ...

    def write(self, call: Call) -> str:
        """The canonical text of a call, line ends beside the tags included."""
        ...

    def read(self, text: str) -> Sequence[Reading]:
        """The calls of a text. Raises BadCall."""
        ...

    def begins(self, text: str) -> Iterator[int]:
        """Places where a call may begin that has no opening tag, likeliest first."""
        ...


def build(body: Body, chat: type[ChatMl], config: LayoutConfig, context: BuildContext) -> TaggedRenderer:
    """A renderer of `body`, in the tokenizer's own chat template where there is one and the settings allow it."""
    tokenizer = context.get("tokenizer")
    template = getattr(tokenizer, "chat_template", None)
    if config.layout == "template" and template is None:
        raise ConfigError(
            "the tokenizer has no chat template",
            where=f'layout = "template" of the renderer {body.name}',
            fix='set layout = "auto" or "builtin"',
        )
    derived = template is not None and config.layout != "builtin"
    layout = TemplateLayout(str(template), body) if derived else chat(config.schemas, body.howto)
    return TaggedRenderer(tokenizer, layout, body)


class TaggedRenderer:
    """`protocols.Renderer` of a body over a layout."""

    def __init__(self, tokenizer: Tokenizer, layout: Layout, body: Body) -> None:
        self._tokenizer, self._layout, self._body = tokenizer, layout, body
        self._id = control_ids(body.name, tokenizer, NEEDED)
        for token in OPTIONAL:
            self._id.update(_maybe(tokenizer, token))
        self._end = self._id[END]
        self._tags = Tags(
            call=self._id["<tool_call>"],
            close=self._id["</tool_call>"],
            ends=frozenset({self._end}),
            control=all_control(tokenizer, self._id.values()),
            mends=True,
        )
        self._parser = Parser(self._tags, tokenizer, self, gap="\n")
        self._cut = re.compile("(" + "|".join(map(re.escape, self._id)) + ")")

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        return self._ids(self._layout.opening(messages, tools), [(message.text, message.ids) for message in messages])

    def results(self, results: Sequence[ToolResult], ended: bool) -> list[int]:
        ids = [] if ended else [self._end]
        return ids + self._ids(self._layout.results(len(results)), [(result.text, None) for result in results])

    def request(self, message: Message, ended: bool) -> list[int]:
        ids = [] if ended else [self._end]
        return ids + self._ids(self._layout.request(message), [(message.text, message.ids)])

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        return self._parser.parse(ids)

    def render(self, turn: ParsedTurn) -> list[int]:
        encode = self._tokenizer.encode
        ids = encode(turn.text + "\n" if turn.text and turn.calls else turn.text)
        for index, call in enumerate(turn.calls):
            ids += encode("\n") if index else []
            ids += [self._tags.call, *encode(self._body.write(call)), self._tags.close]
        return [*ids, self._end] if turn.ended else ids

    def stop_ids(self) -> frozenset[int]:
        return self._tags.ends

    # --- scan.Inside

    def read(self, ids: tuple[int, ...]) -> Sequence[Reading]:
        return self._body.read(strict_text(self._tokenizer, ids, "the call"))

    def unopened(self, ids: tuple[int, ...]) -> tuple[str, Sequence[Reading]]:
        text = strict_text(self._tokenizer, ids, "the call")
        for place in self._body.begins(text):
            try:
                return text[:place].removesuffix("\n"), self._body.read(text[place:])
            except BadCall:
                continue
        raise BadCall("no call was opened")

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


def _maybe(tokenizer: Tokenizer, token: str) -> dict[str, int]:
    try:
        return {token: tokenizer.special(token)}
    except KeyError:
        return {}
