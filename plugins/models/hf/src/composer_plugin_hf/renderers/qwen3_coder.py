"""The `qwen3_coder` renderer: calls as functions and parameters, as Qwen3-Coder and Qwen3.5 write them.

    <|im_start|>assistant
    words
    <tool_call>
    <function=read_file>
    <parameter=path>
    a.py
    </parameter>
    </function>
    </tool_call><|im_end|>

Values are text, JSON for what is not text; `schema.bind` casts them back by the tool's types. The run's tools are asked
for at construction: which arguments a tool has decides where a value ends (`blocks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from composer_core import BuildContext
from composer_core.types import Call
from composer_plugin_hf.renderers import blocks
from composer_plugin_hf.renderers.config import Qwen3CoderConfig
from composer_plugin_hf.renderers.layouts import OneAnswer
from composer_plugin_hf.renderers.scan import Reading
from composer_plugin_hf.renderers.tagged import TaggedRenderer, build
from composer_plugin_hf.renderers.tools import compact


def build_qwen3_coder(config: Qwen3CoderConfig, context: BuildContext) -> TaggedRenderer:
    schemas = context.get("tools").schemas
    known = {tool.name: frozenset(tool.parameters["properties"]) for tool in schemas}
    return build(FunctionBody(known), OneAnswer, config, context)


@frozen
class FunctionBody:
    """`tagged.Body`: a function block; `known` are the run's tools."""

    known: blocks.Known
    name: str = "qwen3_coder"
    howto: str = """
Call a tool like this, as often as needed in one turn:
<tool_call>
<function=tool>
<parameter=key>
value, on as many lines as it has
</parameter>
</function>
</tool_call>"""

    def write(self, call: Call) -> str:
        texts = {key: value if isinstance(value, str) else compact(value) for key, value in call.arguments.items()}
        return blocks.written(call.name, texts)

    def read(self, text: str) -> Sequence[Reading]:
        return blocks.read(text, self.known)

    def begins(self, text: str) -> Iterator[int]:
        return blocks.begins(text, self.known)
