"""Settings of the two trackers, and what they both read out of names."""

from __future__ import annotations

import re

from attrs import field, frozen, validators

DURING = re.compile(r"step-(\d+)")
"""The arm of an evaluation made during training, and its step; evaluations are named "arm/case"."""


@frozen
class TensorboardConfig:
    folder: str = "tensorboard"
    """Folder of the event files, below the run folder."""
    episodes_every: int = field(default=100, validator=validators.ge(1))
    """Ended episodes that are averaged into one point."""


@frozen
class HtmlConfig:
    traces: int = field(default=200, validator=validators.ge(0))
    """Most traces embedded in the page, spread over stages, outcomes and time."""
    pairs: int = field(default=24, validator=validators.ge(0))
    """Most attempts embedded twice, as they went before and after training."""
    text_chars: int = field(default=6000, validator=validators.ge(200))
    """Most characters of one message, result or patched file in the page."""
