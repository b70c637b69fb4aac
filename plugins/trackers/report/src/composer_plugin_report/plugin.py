"""Hook module: two trackers, scalars for TensorBoard and a self-contained HTML report."""

from __future__ import annotations

from collections.abc import Iterable

from composer_core import TrackerSpec, hookimpl
from composer_plugin_report.config import HtmlConfig, TensorboardConfig

COMPOSER_API = 1


@hookimpl
def composer_trackers() -> Iterable[TrackerSpec]:
    yield TrackerSpec(
        name="tensorboard",
        summary="scalars of steps, evaluations and episodes, written without torch",
        config=TensorboardConfig,
        footprint="composer_plugin_report.footprint:tensorboard",
        factory="composer_plugin_report.tensorboard:TensorboardTracker",
    )
    yield TrackerSpec(
        name="html",
        summary="one self-contained report.html with curves, evaluations and browsable traces",
        config=HtmlConfig,
        footprint="composer_plugin_report.footprint:html",
        factory="composer_plugin_report.html:HtmlTracker",
    )
