"""How much a plugin's author has to write, counted so that formatting, comments and docstrings cost nothing."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping
from pathlib import Path

BUDGETS: Mapping[str, int] = {
    "tool": 25,
    "sandbox": 120,
    "sampler": 90,
    "reward": 25,
    "kernel": 45,
    "task": 95,
    "model": 95,
    "renderer": 95,
    "algorithm": 40,
    "trainer": 120,
    "executor": 70,
    "context": 45,
    "tracker": 40,
    "store": 60,
}
"""Kind -> `author_lines` of the smallest plugin that is worth having, at most. Tool, reward, algorithm and sandbox are
promises to authors; the others hold what `composer-run new` writes."""


def logical_lines(path: Path) -> int:
    """Statements of a Python file; one that runs over several lines counts once, a decorator counts."""
    source = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    docstrings = sum(_is_text(item) for node in ast.walk(ast.parse(source)) for item in _body(node))
    return sum(token.type == tokenize.NEWLINE for token in tokens) - docstrings


def author_lines(dist: Path) -> int:
    """What a distribution asks of its author: statements below src/ and the lines of pyproject.toml that say something.

    Its tests and its README are not counted.
    """
    settings = (line.strip() for line in (dist / "pyproject.toml").read_text(encoding="utf-8").splitlines())
    said = sum(bool(line) and not line.startswith("#") for line in settings)
    return said + sum(logical_lines(path) for path in (dist / "src").rglob("*.py"))


def _body(node: ast.AST) -> list[ast.stmt]:
    body = getattr(node, "body", None)
    return body if isinstance(body, list) else []


def _is_text(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)
