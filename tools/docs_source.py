"""Definitions as a reader of the contract needs them: signatures, fields and what each means, without bodies.

Used by `tools/docs.py`. The text is cut out of core's source through its syntax tree and nothing is imported, so pages
show the words of the code, and torch's side is read without torch. A name is "module.Name" below `composer_core`, or
"envkit.module.Name" of the other distribution that authors write against; a module alone is everything public in it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, ENVKIT = ROOT / "core/src/composer_core", ROOT / "envkit/src/composer_envkit"
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
INDENT = "    "


def stub(name: str) -> str:
    """The definition of one class or function."""
    module, _, last = name.rpartition(".")
    lines, found = module_of(module)
    node = found[last]
    return function(node, lines, "") if isinstance(node, FUNCTIONS) else class_(node, lines)


def names_of(module: str) -> list[str]:
    """Public classes and functions of a module, in the order of its source."""
    return [f"{module}.{name}" for name in module_of(module)[1]]


@cache
def module_of(name: str) -> tuple[list[str], dict[str, Definition]]:
    """The lines of a module, and its public definitions by name."""
    path = f"{name.removeprefix('envkit.').replace('.', '/')}.py"
    text = ((ENVKIT if name.startswith("envkit.") else SOURCE) / path).read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(text).body if isinstance(node, (ast.ClassDef, *FUNCTIONS))]
    return text.splitlines(), {node.name: node for node in nodes if not node.name.startswith("_")}


def methods_of(name: str) -> dict[str, str]:
    """Method -> signature on one line, "async" first where it is a coroutine."""
    module, _, last = name.rpartition(".")
    node = module_of(module)[1][last]
    return {item.name: signature(item) for item in node.body if isinstance(item, FUNCTIONS)}


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    begin = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    arguments = re.sub(r"^self(, )?", "", ast.unparse(node.args))
    return f"{begin}{node.name}({arguments}) -> {ast.unparse(node.returns) if node.returns else 'None'}"


# --- classes ------------------------------------------------------------------------------------------------------


def class_(node: ast.ClassDef, lines: list[str]) -> str:
    protocol = any(ast.unparse(base) == "Protocol" for base in node.bases)
    fields = list(fields_of(node, lines))
    methods = [
        function(item, lines, node.name if protocol else "")
        for item in node.body
        if isinstance(item, FUNCTIONS) and (not item.name.startswith("_") or (protocol and item.name == "__call__"))
    ]
    parts = [part for part in (docstring(node, lines), "\n".join(fields), *methods) if part]
    gaps = ["\n" if one in methods and "\n" not in before + one else "\n\n" for before, one in pairwise(parts)]
    body = "".join(text for pair in zip(parts, [*gaps, ""], strict=True) for text in pair)
    return f"{header(node, lines)}\n{body}" if body else f"{header(node, lines)} ..."


def fields_of(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    """Attributes with type, default and the sentence below them."""
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(item, (ast.AnnAssign, ast.Assign)):
            continue
        name = ast.unparse(item.target if isinstance(item, ast.AnnAssign) else item.targets[0])
        kind = f": {ast.unparse(item.annotation)}" if isinstance(item, ast.AnnAssign) else ""
        if name.startswith("_") or "ClassVar" in kind:
            continue
        value = default(item.value, lines) if item.value else None
        yield f"{INDENT}{name}{kind}" + (f" = {value}" if value else "")
        if after and is_text(after):
            yield source(after, lines)


def default(value: ast.expr, lines: list[str]) -> str | None:
    """A default as its reader would write it; None for a field without one."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) not in ("field", "Factory"):
        return cut(value, lines)
    given = {word.arg: word.value for word in value.keywords}
    if "default" in given:
        return default(given["default"], lines)
    made = value.args[0] if value.args else given.get("factory")
    if made is None:
        return None
    return "..." if isinstance(made, ast.Lambda) else {"dict": "{}"}.get(ast.unparse(made), f"{ast.unparse(made)}()")


# --- functions ----------------------------------------------------------------------------------------------------


def function(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str], protocol: str) -> str:
    """A header with its docstring.

    Raises:
        ValueError: a Protocol's method has none, so that readers would not learn what it does.
    """
    text = docstring(node, lines)
    if protocol and not text:
        raise ValueError(f"{protocol}.{node.name} has no docstring: say in a sentence what it does")
    return f"{header(node, lines)}\n{text}" if text else f"{header(node, lines)} ..."


# --- source -------------------------------------------------------------------------------------------------------


def header(node: Definition, lines: list[str]) -> str:
    """From the decorators to the colon."""
    shown = lines[node.lineno - 1 : node.body[0].lineno]
    shown[-1] = shown[-1][: node.body[0].col_offset]
    text = re.sub(r"\s*# (?:type|noqa).*", "", "\n".join(shown).rstrip())
    marks = [f"{' ' * node.col_offset}@{ast.unparse(mark)}" for mark in node.decorator_list]
    return "\n".join([*marks, text])


def docstring(node: Definition, lines: list[str]) -> str:
    return source(node.body[0], lines) if is_text(node.body[0]) else ""


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def cut(node: ast.expr, lines: list[str]) -> str:
    """An expression as it is written."""
    text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return text[node.col_offset : len(text) - len(lines[(node.end_lineno or 0) - 1]) + (node.end_col_offset or 0)]


def source(node: ast.stmt, lines: list[str]) -> str:
    """Whole lines."""
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])


def fence(header: str, text: str) -> str:
    return f"```{header}\n{text.strip(chr(10))}\n```"
