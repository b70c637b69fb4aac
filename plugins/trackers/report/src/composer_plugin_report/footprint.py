"""What the two trackers hold and leave behind. Thin."""

from __future__ import annotations

from composer_core import Footprint, RunView
from composer_plugin_report.config import HtmlConfig, TensorboardConfig

STEP_BYTES = 300
"""Scalars of one step in the event file."""
SHOWN_BYTES = 5 << 10
"""One trace in the page; measured, with words and calls of a few hundred tokens."""
PAGE_BYTES = 60 << 10
"""The page without traces."""


def tensorboard(config: TensorboardConfig, run: RunView) -> Footprint:
    steps = sum(choice.stage.steps for choice in run.config.stages)
    scalars = steps + run.episodes // config.episodes_every
    return Footprint(
        imports={"composer_plugin_report.tensorboard": 5 << 20}, files={f"{config.folder}/": scalars * STEP_BYTES}
    )


def html(config: HtmlConfig, run: RunView) -> Footprint:
    """The page is made once, at the end, of at most `traces` traces."""
    page = PAGE_BYTES + min(config.traces, run.episodes) * SHOWN_BYTES
    return Footprint({"the page as it is made": 6 * page}, files={"report.html": page})
