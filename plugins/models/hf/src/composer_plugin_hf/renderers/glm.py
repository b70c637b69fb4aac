"""The `glm` renderer: argument by argument between tags that are control tokens, as GLM-4.5 and GLM-4.6 write them.

    <|assistant|>
    words
    <tool_call>read_file
    <arg_key>path</arg_key>
    <arg_value>a.py</arg_value>
    </tool_call><|observation|>
    <tool_response>
    text
    </tool_response><|assistant|>

A turn has no end token of its own: it ends with the tag of whoever comes next. After calls that is `<|observation|>`,
and results go on behind it; a turn with calls that ended otherwise counts as not ended, so the tag is added. Values are
text, JSON for what is not text; `schema.bind` casts them back by the tool's types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve, frozen

from composer_core import BuildContext
from composer_core.protocols import Tokenizer, ToolSchema
from composer_core.types import Message, ParsedTurn, ToolResult
from composer_plugin_hf.renderers.config import GLM_TOKENS, GlmConfig
from composer_plugin_hf.renderers.scan import BadCall, Parser, Reading, Tags, strict_text
from composer_plugin_hf.renderers.tools import all_control, compact, control_ids, described

Blank = Callable[[Sequence[int]], bool]
ROLES = {"system": "<|system|>", "user": "<|user|>", "summary": "<|user|>"}
ENDS = ("<|observation|>", "<|user|>", "<|endoftext|>")
RESPONSE = ("\n<tool_response>\n", "\n</tool_response>")
HOWTO = """
Call a tool like this, as often as needed in one turn:
<tool_call>tool
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>"""


def build_glm(config: GlmConfig, context: BuildContext) -> GlmRenderer:
    return GlmRenderer(context.get("tokenizer"), config.schemas)


class GlmRenderer:
    """`protocols.Renderer` over tags for keys and values."""

    def __init__(self, tokenizer: Tokenizer, schemas: str = "full") -> None:
        self._tokenizer, self._schemas = tokenizer, schemas
        self._id = control_ids("glm", tokenizer, GLM_TOKENS)
        self._arg = _Argument(*(self._id[tag] for tag in ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")))
        self._tags = Tags(
            call=self._id["<tool_call>"],
            close=self._id["</tool_call>"],
            ends=frozenset(self._id[tag] for tag in ENDS),
            inside=self._arg.ids,
            control=all_control(tokenizer, self._id.values()),
            mends=True,
        )
        self._parser = Parser(self._tags, tokenizer, self, gap="\n")
        self._response = tuple(map(self._spelled, RESPONSE))

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        ids = [self._id["[gMASK]"], self._id["<sop>"]]
        text = described(tools, self._schemas)
        ids += [self._id["<|system|>"], *self._tokenizer.encode(f"\n{text}{HOWTO}")] if text else []
        for message in messages:
            ids += self._message(message)
        return [*ids, self._id["<|assistant|>"]]

    def results(self, results: Sequence[ToolResult], ended: bool) -> list[int]:
        ids = [] if ended else [self._id["<|observation|>"]]
        before, after = self._response
        for result in results:
            ids += [*before, *self._tokenizer.encode(result.text), *after]
        return [*ids, self._id["<|assistant|>"]]

    def request(self, message: Message, ended: bool) -> list[int]:
        ids = [] if ended else [self._id["<|endoftext|>"]]
        return [*ids, *self._message(message), self._id["<|assistant|>"]]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        turn = self._parser.parse(ids)
        text = turn.text.removeprefix("\n")
        ended = turn.ended and (not turn.calls or ids[-1] == self._id["<|observation|>"])
        return evolve(turn, text=text, ended=ended)

    def render(self, turn: ParsedTurn) -> list[int]:
        encode = self._tokenizer.encode
        ids = encode(f"\n{turn.text}") if turn.text else []
        for call in turn.calls:
            ids += [*encode("\n"), self._tags.call, *encode(f"{call.name}\n")]
            for key, value in call.arguments.items():
                text = value if isinstance(value, str) else compact(value)
                ids += self._arg.written(encode(key), encode(text), encode("\n"))
            ids.append(self._tags.close)
        return [*ids, self._id["<|observation|>" if turn.calls else "<|user|>"]] if turn.ended else ids

    def stop_ids(self) -> frozenset[int]:
        return self._tags.ends

    # --- scan.Inside

    def read(self, ids: tuple[int, ...]) -> Sequence[Reading]:
        first = next((at for at, token in enumerate(ids) if token in self._arg.ids), len(ids))
        name = strict_text(self._tokenizer, ids[:first], "the tool's name").strip()
        if not name:
            raise BadCall("the call has no tool name")
        arguments: dict[str, str] = {}
        repairs: dict[str, None] = {}
        for key_ids, value_ids, repair in self._arg.pairs(ids[first:], self._blank):
            key = strict_text(self._tokenizer, key_ids, "an argument's name")
            if not key:
                raise BadCall("an argument has no name")
            if key in arguments:
                raise BadCall(f"argument {key!r} is given twice")
            arguments[key] = strict_text(self._tokenizer, value_ids, f"the value of {key!r}")
            repairs.update(dict.fromkeys(repair))
        return [Reading(name, arguments, "; ".join(repairs))]

    def unopened(self, ids: tuple[int, ...]) -> tuple[str, Sequence[Reading]]:
        """The last line of the words is taken for the tool's name; without arguments it cannot be told from words."""
        at = next((place for place, token in enumerate(ids) if token in self._arg.ids), None)
        if at is None:
            raise BadCall("no call was opened")
        words, line, name = self._tokenizer.decode(ids[:at]).rstrip("\n").rpartition("\n")
        return words if line else "", self.read((*self._tokenizer.encode(name), *ids[at:]))

    def _blank(self, ids: Sequence[int]) -> bool:
        return not self._tokenizer.decode(ids).strip()

    def _message(self, message: Message) -> list[int]:
        words = self._tokenizer.encode(message.text) if message.ids is None else list(message.ids.values())
        return [self._id[ROLES[message.role]], *self._tokenizer.encode("\n"), *words]

    def _spelled(self, text: str) -> list[int]:
        """Ids of the tags around a result, as control tokens where the tokenizer has them."""
        tag = text.strip()
        try:
            control = [self._tokenizer.special(tag)]
        except KeyError:
            return self._tokenizer.encode(text)
        before, _, after = text.partition(tag)
        return [*self._tokenizer.encode(before), *control, *self._tokenizer.encode(after)]


@frozen
class _Argument:
    """The four tags of an argument, as ids."""

    key: int
    key_end: int
    value: int
    value_end: int

    @property
    def ids(self) -> frozenset[int]:
        return frozenset({self.key, self.key_end, self.value, self.value_end})

    def written(self, key: list[int], value: list[int], line: list[int]) -> list[int]:
        return [self.key, *key, self.key_end, *line, self.value, *value, self.value_end, *line]

    def pairs(self, ids: tuple[int, ...], blank: Blank) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], list[str]]]:
        """Key and value of each argument, and what was mended. Raises BadCall for what is between them or missing."""
        runs = list(self._runs(ids))
        while runs:
            (tag, key), repair = runs.pop(0), []
            if tag != self.key:
                raise BadCall("a value stands before its argument's name")
            if runs and runs[0][0] == self.key_end:
                _refuse(runs.pop(0)[1], blank)
            else:
                repair.append("</arg_key> is missing")
            if not runs or runs[0][0] != self.value:
                raise BadCall("an argument has no value")
            value = runs.pop(0)[1]
            if runs and runs[0][0] == self.value_end:
                _refuse(runs.pop(0)[1], blank)
            else:
                repair.append("</arg_value> is missing")
            yield key, value, repair

    def _runs(self, ids: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Each tag with the ids behind it."""
        places = [at for at, token in enumerate(ids) if token in self.ids]
        for at, stop in zip(places, (*places, len(ids))[1:], strict=True):
            yield ids[at], ids[at + 1 : stop]


def _refuse(ids: tuple[int, ...], blank: Blank) -> None:
    if not blank(ids):
        raise BadCall("text stands between arguments")
