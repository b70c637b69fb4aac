"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Iterable

from attrs import field, frozen
from attrs.validators import ge, gt, lt

from composer_core import ContextSpec, hookimpl

COMPOSER_API = 1


@frozen
class MyNameConfig:
    """Settings beside `context.use` in the run file."""

    full: float = field(default=0.7, validator=[gt(0), lt(1)])
    """Share of the window (`limits.context_tokens`) from which on a branch is left; the rest is room for a turn and
    its results."""
    keep_turns: int = field(default=2, validator=ge(1))
    """Latest turns whose calls and results are told again in the new branch."""


@hookimpl
def composer_contexts() -> Iterable[ContextSpec]:
    """A factory in text is imported when a run has chosen the component, never by a listing."""
    yield ContextSpec(
        name="my-name",
        factory="composer_plugin_my_name.context:MyNameContext",
        config=MyNameConfig,
        capabilities={"context.branches"},
        summary="a full window is left for one with the latest results alone",
    )
