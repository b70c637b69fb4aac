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
HERMES_TOKENS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@frozen
class XmlConfig:
    """Settings of the `xml` renderer."""

    schemas: str = field(default="names", validator=in_(("full", "names", "none")))
    """How the opening describes tools: full (a JSON schema each), names (one line), none."""


@frozen
class HermesConfig:
    """Settings of the `hermes` renderer."""

    schemas: str = field(default="full", validator=in_(("full", "names", "none")))
    """How the built-in layout's opening describes tools; a tokenizer's own template decides for itself."""
    layout: str = field(default="auto", validator=in_(("auto", "builtin", "template")))
    """template: the tokenizer's chat template; builtin: ChatML turns; auto: the template where there is one."""
