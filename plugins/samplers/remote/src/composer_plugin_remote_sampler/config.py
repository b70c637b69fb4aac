"""Settings of the samplers; thin, read by `check`."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt


def _url(_instance: object, attribute: Attribute[Any], value: str) -> None:
    if not value.startswith(("http://", "https://")) or value.endswith("/"):
        raise ValueError(f"{attribute.name} is http:// or https://, a host and perhaps a path, found {value!r}")


@frozen(kw_only=True)
class TextConfig:
    """Settings of `text`, and what all share."""

    base_url: str = field(validator=_url)
    """Where the server listens, without /v1 and without a slash at its end."""
    model: str = ""
    """The name the model is served under; "" asks for none."""
    key_env: str = ""
    """Environment variable that holds the API key, "" for none."""
    context_tokens: int = field(default=0, validator=ge(0))
    """Window of the server, at which a generation stops with "context"; 0 leaves it to the task's own limit."""
    connections: int = field(default=256, validator=gt(0))
    """Generations that are asked for at once; more wait here."""
    timeout_s: float = field(default=600.0, validator=gt(0))
    """Longest wait for one answer."""
    retries: int = field(default=2, validator=ge(0))
    """How often a request is sent again after a broken connection, a 429 or a 5xx."""


@frozen(kw_only=True)
class IdsConfig(TextConfig):
    """Settings that samplers of exact ids share."""

    folder: str = ""
    """Folder the server was started on and both sides see, for new weights; "" if the server keeps its own."""


@frozen(kw_only=True)
class OpenAiConfig(IdsConfig):
    """Settings of `openai`."""

    processed_logprobs: bool = False
    """The server's log-probabilities are of the distribution sampled from at any temperature, not at 1 alone."""


@frozen(kw_only=True)
class SglangConfig(IdsConfig):
    """Settings of `sglang`."""
