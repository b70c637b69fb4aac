"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Iterable

from composer_core import TrackerSpec, hookimpl

COMPOSER_API = 1


@hookimpl
def composer_trackers() -> Iterable[TrackerSpec]:
    """A factory in text is imported when a run has chosen the component, never by a listing."""
    yield TrackerSpec(
        name="my-name",
        factory="composer_plugin_my_name.tracker:MyNameTracker",
        summary="the metrics of every step as rows of my-name/steps.csv",
    )
