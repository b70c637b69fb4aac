"""Settings and control tags of the renderers; thin, read before anything is built."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import in_

XML_TOKENS = (
    "<|system|>",
    "<|user|>",
    "<|summary|>",
    "<|agent|>",
    "<|end|>",
    "<call>",
    "<arg>",
    "<val>",
    "</call>",
    "<result>",
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
HERMES_TOKENS = QWEN3_CODER_TOKENS = CHATML_TOKENS
KIMI_TOKENS = (
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|im_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
GLM_TOKENS = (
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)


@frozen
class XmlConfig:
    """Settings of the `xml` renderer."""

    schemas: str = field(default="names", validator=in_(("full", "names", "none")))
    """How the opening describes tools: full (a JSON schema each), names (one line), none."""


@frozen
class LayoutConfig:
    """Settings that renderers of ChatML turns share."""

    schemas: str = field(default="full", validator=in_(("full", "names", "none")))
    """How the built-in layout's opening describes tools; a tokenizer's own template decides for itself."""
    layout: str = field(default="auto", validator=in_(("auto", "builtin", "template")))
    """template: the tokenizer's chat template; builtin: ChatML turns; auto: the template where there is one."""


@frozen
class HermesConfig(LayoutConfig):
    """Settings of the `hermes` renderer."""


@frozen
class Qwen3CoderConfig(LayoutConfig):
    """Settings of the `qwen3_coder` renderer."""


@frozen
class KimiConfig:
    """Settings of the `kimi` renderer."""

    schemas: str = field(default="full", validator=in_(("full", "names", "none")))
    """How the opening declares tools: full (a JSON schema each, as the models know it), names, none."""


@frozen
class GlmConfig:
    """Settings of the `glm` renderer."""

    schemas: str = field(default="full", validator=in_(("full", "names", "none")))
    """How the opening describes tools: full (a JSON schema each), names (one line), none."""
