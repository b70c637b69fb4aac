"""The `kimi` renderer: calls in a section of their own, each with an id that counts, as Kimi K2 writes them.

    <|im_assistant|>assistant<|im_middle|>words<|tool_calls_section_begin|>
    <|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>{"path": "a.py"}<|tool_call_end|>
    <|tool_calls_section_end|><|im_end|>

(on one line). Every tag is one control token. A result names its call, and these models lose their way where a history
holds ids of another form than functions.NAME:N; so a call whose id is another is given one of that form, and is counted
as repaired. What the policy wrote stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from attrs import evolve

from composer_core import BuildContext
from composer_core.protocols import Tokenizer, ToolSchema
from composer_core.types import Call, Message, ParsedTurn, ToolResult
from composer_plugin_hf.renderers.config import KIMI_TOKENS, KimiConfig
from composer_plugin_hf.renderers.loose_json import values_of
from composer_plugin_hf.renderers.scan import BadCall, Parser, Reading, Tags, mended, split, strict_text
from composer_plugin_hf.renderers.tools import all_control, as_function, compact, control_ids, described

CANONICAL = re.compile(r"functions\.(.+):(\d+)", re.DOTALL)
LOOSE = re.compile(r"(?:functions[.:])?\s*(.+?)\s*(?::\s*\d*)?", re.DOTALL)
MIDDLE = "<|im_middle|>"
ROLES = {
    "system": ("<|im_system|>", "system"),
    "user": ("<|im_user|>", "user"),
    "summary": ("<|im_user|>", "user"),
    "tool": ("<|im_system|>", "tool"),
    "declare": ("<|im_system|>", "tool_declare"),
    "assistant": ("<|im_assistant|>", "assistant"),
}


def build_kimi(config: KimiConfig, context: BuildContext) -> KimiRenderer:
    return KimiRenderer(context.get("tokenizer"), config.schemas)


class KimiRenderer:
    """`protocols.Renderer` of sections of calls."""

    def __init__(self, tokenizer: Tokenizer, schemas: str = "full") -> None:
        self._tokenizer, self._schemas = tokenizer, schemas
        self._id = control_ids("kimi", tokenizer, KIMI_TOKENS)
        self._end = self._id["<|im_end|>"]
        self._section = (self._id["<|tool_calls_section_begin|>"], self._id["<|tool_calls_section_end|>"])
        self._tags = Tags(
            call=self._id["<|tool_call_begin|>"],
            close=self._id["<|tool_call_end|>"],
            ends=frozenset({self._end}),
            inside=frozenset({self._id["<|tool_call_argument_begin|>"]}),
            around=frozenset(self._section),
            control=all_control(tokenizer, self._id.values()),
            mends=True,
        )
        self._parser = Parser(self._tags, tokenizer, self, call_id=_canonical)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        declared = self._declared(tools)
        ids = self._turn("declare", self._tokenizer.encode(declared)) if declared else []
        for message in messages:
            ids += self._message(message)
        return ids + self._head("assistant")

    def results(self, results: Sequence[ToolResult], ended: bool) -> list[int]:
        ids = [] if ended else [self._end]
        for result in results:
            ids += self._turn("tool", self._tokenizer.encode(f"## Return of {result.call_id}\n{result.text}"))
        return ids + self._head("assistant")

    def request(self, message: Message, ended: bool) -> list[int]:
        ids = [] if ended else [self._end]
        return [*ids, *self._message(message), *self._head("assistant")]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        turn = self._parser.parse(ids)
        begin, end = self._section
        outside = begin not in ids or (turn.ended and end not in ids)
        return evolve(turn, calls=tuple(map(_outside, turn.calls))) if outside else turn

    def render(self, turn: ParsedTurn) -> list[int]:
        encode, (begin, end) = self._tokenizer.encode, self._section
        ids = encode(turn.text)
        ids += [begin] if turn.calls else []
        for at, call in enumerate(turn.calls):
            arguments = encode(compact(dict(call.arguments)))
            argument = self._id["<|tool_call_argument_begin|>"]
            ids += [self._tags.call, *encode(_id_of(call, at)), argument, *arguments, self._tags.close]
        ids += [end] if turn.calls else []
        return [*ids, self._end] if turn.ended else ids

    def stop_ids(self) -> frozenset[int]:
        return self._tags.ends

    # --- scan.Inside

    def read(self, ids: tuple[int, ...]) -> Sequence[Reading]:
        head, *bodies = split(ids, self._id["<|tool_call_argument_begin|>"])
        if len(bodies) != 1:
            raise BadCall(f"the call has {'more than one' if bodies else 'no'} <|tool_call_argument_begin|>")
        name, call_id, repair = _named(strict_text(self._tokenizer, head, "the call's id"))
        values, again = values_of(strict_text(self._tokenizer, bodies[0], "the arguments"))
        if len(values) != 1 or not isinstance(values[0], dict):
            raise BadCall("the arguments must be a JSON object")
        return [Reading(name, values[0], "; ".join(filter(None, (repair, again))), call_id)]

    def unopened(self, ids: tuple[int, ...]) -> tuple[str, Sequence[Reading]]:
        """The last line of the words is taken for the id."""
        at = next((place for place, token in enumerate(ids) if token in self._tags.inside), len(ids))
        words, line, head = self._tokenizer.decode(ids[:at]).rpartition("\n")
        (reading,) = self.read((*self._tokenizer.encode(head), *ids[at:]))
        return words if line else "", [reading]

    # --- turns

    def _declared(self, tools: Sequence[ToolSchema]) -> str:
        if self._schemas != "full":
            return described(tools, self._schemas)
        functions = [as_function(tool) for tool in tools]
        return json.dumps(functions, ensure_ascii=False, separators=(",", ":")) if functions else ""

    def _message(self, message: Message) -> list[int]:
        words = self._tokenizer.encode(message.text) if message.ids is None else list(message.ids.values())
        return self._turn(message.role, words)

    def _turn(self, role: str, words: list[int]) -> list[int]:
        return [*self._head(role), *words, self._end]

    def _head(self, role: str) -> list[int]:
        token, name = ROLES[role]
        return [self._id[token], *self._tokenizer.encode(name), self._id[MIDDLE]]


def _canonical(number: int, name: str) -> str:
    return f"functions.{name or 'unknown'}:{number}"


def _id_of(call: Call, at: int) -> str:
    """The id a call is rendered with: its own if it is of the right form and name."""
    found = CANONICAL.fullmatch(call.id)
    return call.id if found and found[1] == call.name else _canonical(at, call.name)


def _named(text: str) -> tuple[str, str, str]:
    """Name, id ("" if it must be given one) and repair of what stands where a call's id should."""
    if found := CANONICAL.fullmatch(text):
        return found[1], text, ""
    found = LOOSE.fullmatch(text.strip())
    if not found:
        raise BadCall("the call has no tool name")
    return found[1], "", f"{text.strip()[:40]!r} is no id of the form functions.NAME:N"


def _outside(call: Call) -> Call:
    if call.problem:
        return call
    reading = mended(Reading("", {}, call.repair), "a tag of the section of calls is missing")
    return evolve(call, repair=reading.repair)
