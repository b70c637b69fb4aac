"""Three tools, enough for an episode: read, write, done."""

from __future__ import annotations

from composer_core import ToolContext


async def read(context: ToolContext, path: str) -> str:
    """Read a file."""
    return (await context.sandbox.read(path)).decode()


async def write(context: ToolContext, path: str, text: str) -> str:
    """Replace a file."""
    await context.sandbox.write(path, text.encode())
    return "written"


def done() -> str:
    """End the episode."""
    return ""
