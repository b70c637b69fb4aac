"""Hook module: imported by every listing of plugins, so it imports nothing heavy."""

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
def composer_tools() -> list[ToolSpec]:
    """What the model is told (name, schema, description) is made of the function's signature and docstring."""
    return [ToolSpec.of(my_name, effect="read")]
