"""The tool `workshop/outline`: a typed function. Its signature and docstring are what the model is told.

The text comes from the sandbox and is only parsed, never run, here on the host. What the model did wrong is a
`ToolError`, whose message the model reads; errors of the path (missing, outside) already are such messages and pass.
"""

import ast
import asyncio
from collections.abc import Iterator, Sequence

from composer_core import ToolContext, ToolError, ToolOutput

MOST_BYTES = 256 << 10
"""Larger files are refused: a policy may write them, and parsing takes many times their size."""


async def outline(context: ToolContext, path: str) -> ToolOutput:
    """List the classes, functions and methods of a Python file, with their lines.

    Args:
        path: file, relative to the workspace
    """
    data = await context.sandbox.read(path)
    if len(data) > MOST_BYTES:
        raise ToolError(f"{path} has {len(data)} bytes, outline reads at most {MOST_BYTES}; read a part of it instead")
    try:
        rows = await asyncio.to_thread(lambda: list(entries(ast.parse(data, path).body)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(f"{path} cannot be parsed: {error}") from None
    return ToolOutput("\n".join(rows) or "no classes or functions", data={"outlined": path, "entries": len(rows)})


def entries(body: Sequence[ast.stmt], indent: str = "") -> Iterator[str]:
    """One row for each class and function, and below a class its own; functions inside functions are left out."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            inner, node.body, node.decorator_list = node.body, [], []
            yield f"{node.lineno}-{node.end_lineno} {indent}{ast.unparse(node).strip().removesuffix(':')}"
            yield from entries(inner if isinstance(node, ast.ClassDef) else [], indent + "  ")
