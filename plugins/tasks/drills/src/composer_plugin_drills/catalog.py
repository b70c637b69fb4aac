"""The library as data: every function's text with its checks, and the name its module has in a workspace.

Read as text, never imported: a workspace gets exactly the characters that stand in `library/`. A workspace holds one
function per file, so a file is short enough for a context of a few hundred tokens.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from attrs import frozen

from composer_plugin_drills.inroom.run import canonical

FOLDER = Path(__file__).parent
HELD_OUT = ("graphs", "intervals", "money")
"""Modules (by workspace name) kept from every stage: the split `new_function`."""

HEAD_LINES = 2
"""A function's first line and its docstring, which no bug touches."""


@frozen
class Check:
    """An expression and the canonical text of its value."""

    expression: str
    value: str
    """`inroom.run.canonical` of the expected value."""
    literal: str
    """The expected value as Python source."""


@frozen
class Function:
    """One function of the library."""

    module: str
    """Name in a workspace; never one of the standard library's."""
    name: str
    text: str
    """The file's whole text, newline at its end."""
    visible: tuple[Check, ...]
    hidden: tuple[Check, ...]

    @property
    def path(self) -> str:
        return f"{self.module}/{self.name}.py"

    @property
    def held_out(self) -> bool:
        return self.module in HELD_OUT


@cache
def functions() -> Mapping[tuple[str, str], Function]:
    """(module, name) -> function, in the library's order; made once per process."""
    paths = sorted(path for path in (FOLDER / "library").glob("*.py") if path.name != "__init__.py")
    return MappingProxyType({(one.module, one.name): one for path in paths for one in _module(path)})


@cache
def siblings(module: str) -> Sequence[Function]:
    """All functions of a module, by its workspace name."""
    return tuple(one for (name, _), one in functions().items() if name == module)


def body(text: str) -> str:
    """A function's file below the docstring, without the first line's indentation."""
    return "\n".join(text.split("\n")[HEAD_LINES:]).strip()


def workspace_name(stem: str) -> str:
    """`codecs` would be shadowed by the standard library's, so it becomes `codecs_`."""
    return f"{stem}_" if stem in sys.stdlib_module_names else stem


def _module(path: Path) -> list[Function]:
    source = path.read_text()
    tables = import_module(f"composer_plugin_drills.checks.{path.stem}").CHECKS
    return [
        Function(
            module=workspace_name(path.stem),
            name=node.name,
            text=(ast.get_source_segment(source, node) or "") + "\n",
            visible=tuple(_check(*row) for row in tables[node.name]["visible"]),
            hidden=tuple(_check(*row) for row in tables[node.name]["hidden"]),
        )
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    ]


def _check(expression: str, expected: object) -> Check:
    return Check(expression, canonical(expected), repr(expected))
