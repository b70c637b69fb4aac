"""The mutation engine: one small bug at a time, written into the source text of a function.

Works on the text of any Python module: `mutate(source, "clamp")` or `mutate(source, "Stack.push")` returns every
mutation of the operator table (`operators.py`) in source order. A mutation replaces a span of the text, so formatting
and comments survive, and it touches exactly one line. The result is parsed again; what no longer compiles is left out.

Whether a mutation is a *bug* (some test notices) is not decided here; see `validate.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile

from attrs import frozen

from composer_plugin_drills.operators import OPERATORS, Edit, Site

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Span = tuple[int, int]


@frozen
class Mutation:
    """One edit of one line."""

    operator: str
    """Name in `operators.OPERATORS`."""
    function: str
    """Qualified name within the module."""
    line: int
    """Line of the source, from 1."""
    column: int
    """Offset of the replaced span in its line, in characters, from 0; (line, column, operator) names the site."""
    fragment: str
    """The replaced span."""
    replacement: str
    before: str
    """The whole line before, without its newline."""
    after: str

    def apply(self, source: str) -> str:
        """The source with this mutation in it.

        Raises:
            ValueError: the line is not the one that the mutation was made for.
        """
        return replace_line(source, self.line, self.before, self.after)

    @property
    def span(self) -> Span:
        """The edit site: see `changed`."""
        return changed(self.before, self.after, self.column)

    def key(self) -> tuple[str, str]:
        """What was exchanged for what, without where."""
        return self.fragment, self.replacement


def changed(before: str, after: str, column: int) -> Span:
    """Columns [start, stop) of a line that an exchange beginning at `column` changes; at least one."""
    pairs = zip(reversed(before), reversed(after), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    most = min(len(before), len(after)) - column
    return column, max(column + 1, len(before) - min(same, most))


def overlap(one: Span, two: Span) -> bool:
    return one[0] < two[1] and two[0] < one[1]


def replace_line(source: str, line: int, before: str, after: str) -> str:
    """Exchange one line; ValueError when the line there is another one."""
    lines = source.split("\n")
    if not 0 < line <= len(lines) or lines[line - 1] != before:
        raise ValueError(f"line {line} is not {before!r}")
    lines[line - 1] = after
    return "\n".join(lines)


def mutate(source: str, function: str) -> list[Mutation]:
    """Every mutation of one function, ordered by line, column, operator and replacement.

    Raises:
        LookupError: the module has no function of that qualified name.
        SyntaxError: the source does not parse.
    """
    lines = source.split("\n")
    root = find_function(ast.parse(source), function)
    found: dict[tuple[int, str], Mutation] = {}
    first, stop = root.lineno - 1, root.end_lineno or root.lineno
    alone = _compiles(lines[first:stop])
    for name, edit in _edits(Site.of(root, lines), root):
        mutation = _mutation(name, function, edit, lines)
        changed = mutation.apply(source).split("\n")
        if mutation.before != mutation.after and _compiles(changed[first:stop] if alone else changed):
            found.setdefault((mutation.line, mutation.after), mutation)
    return sorted(found.values(), key=lambda one: (one.line, one.column, one.operator, one.replacement))


def find_function(module: ast.Module, qualname: str) -> FunctionNode:
    """The definition behind a dotted name."""
    scope: ast.AST = module
    for part in qualname.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        named = [node for node in ast.iter_child_nodes(scope) if isinstance(node, kinds) and node.name == part]
        if not named:
            raise LookupError(f"no function {qualname!r} in this module")
        scope = named[-1]
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        raise LookupError(f"{qualname!r} is a class, not a function")
    return scope


def _edits(site: Site, root: FunctionNode) -> Iterator[tuple[str, Edit]]:
    for statement in root.body:
        if _is_docstring(statement):
            continue
        for node in ast.walk(statement):
            for name, operator in OPERATORS.items():
                for edit in operator.edits(node, site):
                    yield name, edit


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _mutation(operator: str, function: str, edit: Edit, lines: list[str]) -> Mutation:
    before = lines[edit.line - 1]
    after = before[: edit.start] + edit.text + before[edit.stop :]
    fragment = before[edit.start : edit.stop]
    return Mutation(operator, function, edit.line, edit.start, fragment, edit.text, before, after)


def _compiles(lines: list[str]) -> bool:
    """Whether lines compile; an indented function is given something to be indented under."""
    head = ["if 1:"] if lines[0][:1].isspace() else []
    try:
        compile("\n".join(head + lines), "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
