"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Iterable

from composer_core import StoreSpec, hookimpl

COMPOSER_API = 1


@hookimpl
def composer_stores() -> Iterable[StoreSpec]:
    """A factory in text is imported when a run has chosen the component, never by a listing."""
    yield StoreSpec(
        name="my-name",
        factory="composer_plugin_my_name.store:MyNameStore",
        summary="blobs in one SQLite file of the run folder",
    )
