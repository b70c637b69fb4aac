"""How ChatML turns are laid out: the built-in ChatML layout, and one derived from a tokenizer's chat template.

A layout returns parts: `str` is the layout's own text, in which control tags count; `Words` is text of users and
tools, in which they do not. History is never rendered again, so a layout only ever writes increments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from composer_core.protocols import ToolSchema
from composer_core.types import Message
from composer_plugin_hf.renderers.tools import described

END = "<|im_end|>"
AGENT = "<|im_start|>assistant\n"


@frozen
class Words:
    """Text whose control tags are plain text; `index` names the message or result it stands for."""

    index: int


Part = str | Words


class Layout(Protocol):
    """Parts of the increments; the first part of `results` and `request` follows the end token directly."""

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[Part]: ...
    def results(self, n: int) -> list[Part]: ...
    def request(self, message: Message) -> list[Part]: ...


class ChatMl:
    """Turns as `<|im_start|>role`, words, `<|im_end|>`; results share one user turn."""

    def __init__(self, schemas: str, howto: str) -> None:
        self._schemas, self._howto = schemas, howto

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[Part]:
        parts: list[Part] = []
        text = described(tools, self._schemas)
        if text:
            parts += [f"<|im_start|>system\n{text}{self._howto}{END}\n"]
        for index, message in enumerate(messages):
            parts += [f"<|im_start|>{role(message)}\n", Words(index), f"{END}\n"]
        return [*parts, AGENT]

    def results(self, n: int) -> list[Part]:
        parts: list[Part] = ["\n<|im_start|>user"]
        for index in range(n):
            parts += ["\n<tool_response>\n", Words(index), "\n</tool_response>"]
        return [*parts, f"{END}\n{AGENT}"]

    def request(self, message: Message) -> list[Part]:
        return [f"\n<|im_start|>{role(message)}\n", Words(0), f"{END}\n{AGENT}"]


class OneAnswer(ChatMl):
    """The same, with each result on lines of its own, as Qwen3-Coder has them."""

    def results(self, n: int) -> list[Part]:
        parts: list[Part] = ["\n<|im_start|>user\n"]
        for index in range(n):
            parts += ["<tool_response>\n", Words(index), "\n</tool_response>\n"]
        return [*parts, f"{END}\n{AGENT}"]


def role(message: Message) -> str:
    """The role a chat knows; a summary opens a branch as a user's message."""
    return "user" if message.role == "summary" else message.role


def mark(index: int) -> str:
    """A text that stands for words of a dummy conversation: private-use characters, no template's own."""
    return f"\ue000{index}\ue001"


def parts_of(text: str) -> list[Part]:
    """A rendered dummy conversation, cut at its marks."""
    pieces = re.split("\ue000(\\d+)\ue001", text)
    parts: list[Part] = [piece if at % 2 == 0 else Words(int(piece)) for at, piece in enumerate(pieces)]
    return [part for part in parts if part != ""]
