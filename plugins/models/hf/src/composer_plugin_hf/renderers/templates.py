"""A layout derived from a chat template, by rendering dummy conversations at load.

The increments are what the template writes beyond a prefix it has already written, so they exist only if the template
is prefix-stable: what it writes for a conversation must begin with what it wrote for the conversation's beginning.
Templates that rewrite history (drop old reasoning, renumber calls, add text to the last turn only), or that write calls
in another form than the renderer's, are refused with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from composer_core.errors import ConfigError
from composer_core.protocols import ToolSchema
from composer_core.types import Call, Message
from composer_plugin_hf.renderers.layouts import END, Part, Words, mark, parts_of, role
from composer_plugin_hf.renderers.tools import as_function

Chat = list[dict[str, Any]]
CALL: dict[str, Any] = {"name": "probe", "arguments": {"key": "a b", "count": 1}}


class Writes(Protocol):
    """What a layout must know of how calls are written."""

    def write(self, call: Call) -> str: ...


class TemplateLayout:
    """`layouts.Layout` of a chat template; refuses at construction what could not be continued exactly."""

    def __init__(self, source: str, body: Writes) -> None:
        self._call = f"<tool_call>{body.write(Call('', CALL['name'], CALL['arguments']))}</tool_call>"
        self._render = compiled(source)
        self._user = {"role": "user", "content": mark(0)}
        self._results = lru_cache(maxsize=64)(self._derive_results)
        self._check_turn()
        self._results(1), self._results(2), self._after([_agent(0)], [self._user])

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[Part]:
        chat = [{"role": role(message), "content": mark(index)} for index, message in enumerate(messages)]
        parts = parts_of(self._render(chat, [as_function(tool) for tool in tools] or None, True))
        held = [part.index for part in parts if isinstance(part, Words)]
        if held != list(range(len(messages))):
            raise refused("each message is written once, in order", f"messages {held} of {len(messages)}")
        return parts

    def results(self, n: int) -> list[Part]:
        return list(self._results(n))

    def request(self, message: Message) -> list[Part]:
        return parts_of(self._after([_agent(0)], [{"role": role(message), "content": mark(0)}]))

    def _derive_results(self, n: int) -> tuple[Part, ...]:
        answers = [{"role": "tool", "name": "probe", "content": mark(index)} for index in range(n)]
        parts = tuple(parts_of(self._after([_agent(n)], answers)))
        if [part.index for part in parts if isinstance(part, Words)] != list(range(n)):
            raise refused("each tool result is written once, in order", repr(parts))
        return parts

    def _after(self, turn: Chat, added: Chat) -> str:
        """What the template writes after a turn's end token for the messages `added`."""
        before = self._render([self._user, *turn], None, False)
        whole = self._render([self._user, *turn, *added], None, True)
        end = before.rfind(END)
        if end < 0:
            raise refused(f"a turn of the assistant ends with {END}", before)
        stable = before[: end + len(END)]
        if not whole.startswith(stable):
            raise refused("prefix-stable: a longer conversation begins with the shorter one", difference(stable, whole))
        return whole[len(stable) :]

    def _check_turn(self) -> None:
        """A turn is written as the policy writes it: words, then calls, straight after the generation prompt."""
        prompt = self._render([self._user], None, True)
        for calls, written in ((0, "words"), (1, f"words\n{self._call}"), (2, "words" + f"\n{self._call}" * 2)):
            found = self._render([self._user, _agent(calls)], None, False)
            if not found.startswith(prompt + written + END):
                raise refused("turns are written as the policy samples them", difference(prompt + written + END, found))


def _agent(calls: int) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": "words"}
    return {**turn, "tool_calls": [{"type": "function", "function": CALL}] * calls} if calls else turn


def compiled(source: str) -> Callable[[Chat, Any, bool], str]:
    """The template in a sandboxed jinja environment, as transformers sets it up."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _raise
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise refused("a jinja template", str(error)) from error

    def render(messages: Chat, tools: Any, prompt: bool) -> str:
        values: Mapping[str, Any] = {"bos_token": "", "eos_token": END}
        try:
            return template.render(messages=messages, tools=tools, add_generation_prompt=prompt, **values)
        except (TemplateError, TypeError, ValueError) as error:
            raise refused("the template writes a conversation with tools", str(error)) from error

    return render


def _raise(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def refused(expected: str, found: str) -> ConfigError:
    return ConfigError(
        "this tokenizer's chat template cannot be used",
        where="chat template of the tokenizer",
        expected=expected,
        found=found,
        fix='set layout = "builtin", or use a renderer written for this model',
    )


def difference(expected: str, found: str) -> str:
    """The place where two texts part."""
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
    )
    return f"at character {at}: {expected[at : at + 40]!r} became {found[at : at + 40]!r}"
