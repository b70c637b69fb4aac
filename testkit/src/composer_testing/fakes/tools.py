"""Three tools, enough for an episode: read, write, done."""

from __future__ import annotations

from composer_core import ToolContext


async def read(context: ToolContext, path: str) -> str:
    """Read a file.

    Args:
        path: the file, relative to the workspace
    """
    return (await context.sandbox.read(path)).decode()


async def write(context: ToolContext, path: str, text: str) -> str:
    """Replace a file.

    Args:
        path: the file, relative to the workspace
        text: all that it holds afterwards
    """
    await context.sandbox.write(path, text.encode())
    return "written"


def done() -> str:
    """End the episode."""
    return ""
