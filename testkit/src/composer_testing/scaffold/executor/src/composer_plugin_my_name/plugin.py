"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Iterable

from attrs import field, frozen
from attrs.validators import gt

from composer_core import ExecutorSpec, hookimpl

COMPOSER_API = 1


@frozen
class MyNameConfig:
    """Settings beside `executor.use` in the run file."""

    max_concurrent: int = field(default=1, validator=gt(0))
    """Episodes in flight at once; at 1 they run one after another, in the order they were asked for."""


@hookimpl
def composer_executors() -> Iterable[ExecutorSpec]:
    """A factory in text is imported when a run has chosen the component, never by a listing."""
    yield ExecutorSpec(
        name="my-name",
        factory="composer_plugin_my_name.executor:MyNameExecutor",
        config=MyNameConfig,
        in_flight="max_concurrent",
        summary="episodes of this process, a bounded number at a time",
    )
