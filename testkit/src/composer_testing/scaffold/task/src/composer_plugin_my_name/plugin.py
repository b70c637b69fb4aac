"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Iterable

from composer_core import TaskSpec, hookimpl

COMPOSER_API = 1


@hookimpl
def composer_tasks() -> Iterable[TaskSpec]:
    """A factory in text is imported when a run has chosen the component, never by a listing."""
    yield TaskSpec(
        name="my-name", factory="composer_plugin_my_name.tasks:MyNameTasks", summary="small functions to repair"
    )
