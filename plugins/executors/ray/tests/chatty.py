"""The plugin `chatty`: what lets a policy with random weights have episodes of several turns, and groups that teach.

Installed for the tests of this folder by `conftest`.
"""

from __future__ import annotations

from composer_core import RendererSpec, RewardSpec, hookimpl
from composer_core.types import Call, ParsedTurn
from composer_plugin_hf.renderers.config import XML_TOKENS, XmlConfig

COMPOSER_API = 1


def xml(config, build):
    """The renderer of that name, but for a call after three turns of four: some episodes overtake others."""
    from composer_plugin_hf.renderers.xml import build_xml

    made, read = build_xml(config, build), Call("c0", "read", {"path": "question.txt"})
    made.parse = lambda ids: ParsedTurn("", (read,) if sum(ids) % 4 else (), ended=False)
    return made


@hookimpl
def composer_renderers():
    yield RendererSpec(name="xml", factory=xml, config=XmlConfig, special_tokens=XML_TOKENS)


@hookimpl
def composer_rewards():
    yield RewardSpec(name="every_other", function="composer_testing.fakes.tasks:every_other", outcome=True)
