"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

from collections.abc import Iterable

from composer_core import ToolContext, ToolSpec, hookimpl

COMPOSER_API = 1


async def my_name(context: ToolContext, path: str) -> str:
    """Count the words of a file.

    Args:
        path: The file, relative to the workspace.
    """
    data = await context.sandbox.read(path)
    return f"{len(data.split())} words"


@hookimpl
def composer_tools() -> Iterable[ToolSpec]:
    """What the model is told (name, schema, description) is made of the function's signature and docstring."""
    yield ToolSpec.of(my_name, effect="read")
