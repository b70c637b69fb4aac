"""The two tools. A page is shown once: where it was, an empty file remains, and no tool turns back.

Nothing can be written down either. The only thing an agent may write is its answer, and that ends the work; so what is
read early and asked late is remembered in the window, or in what a context carries on from it.
"""

from __future__ import annotations

from composer_core import ToolContext, ToolError

ANSWER = "answer.txt"


def path_of(page: int) -> str:
    return f"pages/{page:03d}.txt"


async def turn(context: ToolContext, word: str = "") -> str:
    """Turn to the next page, which is shown once; the last page cannot be turned.

    Args:
        word: the word with which the open page is turned; none for the first
    """
    opened, expected = context.state.get("logbook", (0, ""))
    if word.strip() != expected:
        raise ToolError(f"{word.strip()!r} does not turn this page")
    text = (await context.sandbox.read(path_of(opened))).decode()
    await context.sandbox.write(path_of(opened), b"")
    context.state["logbook"] = (opened + 1, text.rpartition(" ")[2])
    return text


async def answer(context: ToolContext, text: str) -> str:
    """Answer what the last page asks, and end the work.

    Args:
        text: the setting's name and its value, as the book says it
    """
    await context.sandbox.write(ANSWER, f"{text.strip()}\n".encode())
    return ""
