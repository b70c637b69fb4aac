"""The operator table: which small bugs the engine can write, one function each.

An operator looks at one syntax node and yields the edits it would make: a span of one line and its new text. Nodes
that stretch over several lines are passed by. The set follows the procedural operators known from the literature on
synthetic bugs (changed operators, off-by-one, dropped conditions, removed statements) plus wrong names and bounds.

To add one: write `edits(node, site)`, list it in `OPERATORS`, and give it a case in the tests.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen


@frozen
class Edit:
    """New text for characters [start, stop) of one line (from 1)."""

    line: int
    start: int
    stop: int
    text: str


@frozen
class Site:
    """The function around a node: its lines, its names, and which node contains which."""

    lines: tuple[str, ...]
    names: tuple[str, ...]
    """Parameters and assigned names, in order of appearance."""
    parents: dict[ast.AST, ast.AST]

    @classmethod
    def of(cls, root: ast.AST, lines: Iterable[str]) -> Site:
        parents = {child: node for node in ast.walk(root) for child in ast.iter_child_nodes(node)}
        bound = [
            (node.lineno, node.col_offset, node.arg if isinstance(node, ast.arg) else node.id)
            for node in ast.walk(root)
            if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        ]
        return cls(tuple(lines), tuple(dict.fromkeys(name for _, _, name in sorted(bound))), parents)

    def span(self, node: ast.AST) -> tuple[int, int, int] | None:
        """(line, start, stop) in characters, or None for a node of several lines."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", -1)
        if line != end:
            return None
        return line, self._chars(line, node.col_offset), self._chars(line, node.end_col_offset)  # type: ignore[attr-defined]

    def _chars(self, line: int, offset: int) -> int:
        """Characters in the first `offset` UTF-8 bytes of a line, which is what the parser counts."""
        return len(self.lines[line - 1].encode()[:offset].decode())

    def text(self, node: ast.AST) -> str:
        where = self.span(node)
        return "" if where is None else self.lines[where[0] - 1][where[1] : where[2]]

    def replace(self, node: ast.AST, text: str) -> Iterator[Edit]:
        where = self.span(node)
        if where is not None:
            yield Edit(*where, text)

    def between(self, left: ast.AST, right: ast.AST, token: str) -> tuple[int, int, int] | None:
        """Where `token` stands between two nodes of one line."""
        one, two = self.span(left), self.span(right)
        if one is None or two is None or one[0] != two[0]:
            return None
        at = self.lines[one[0] - 1].find(token, one[2], two[1])
        return None if at < 0 else (one[0], at, at + len(token))


@frozen
class Operator:
    """A row of the table."""

    summary: str
    edits: Callable[[ast.AST, Site], Iterator[Edit]]


COMPARE = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=", ">=")),
    ast.NotEq: ("!=", ("==", "<")),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
ARITHMETIC = {
    ast.Add: ("+", ("-", "*")),
    ast.Sub: ("-", ("+", "*")),
    ast.Mult: ("*", ("+", "-")),
    ast.Div: ("/", ("//", "*")),
    ast.FloorDiv: ("//", ("/", "%")),
    ast.Mod: ("%", ("//", "-")),
    ast.Pow: ("**", ("*", "+")),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
}
AUGMENTED = {
    ast.Add: ("+=", ("-=", "=")),
    ast.Sub: ("-=", ("+=", "=")),
    ast.Mult: ("*=", ("+=", "=")),
    ast.FloorDiv: ("//=", ("-=", "%=")),
    ast.Mod: ("%=", ("//=", "-=")),
}
TWINS = {
    **dict(
        zip(["min", "any", "lower", "startswith", "ljust"], ["max", "all", "upper", "endswith", "rjust"], strict=True)
    ),
    **dict(
        zip(
            ["lstrip", "find", "keys", "append", "split"],
            ["rstrip", "rfind", "values", "extend", "rsplit"],
            strict=True,
        )
    ),
}
TWINS |= {right: left for left, right in TWINS.items()}


def compare(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            yield from _exchange(COMPARE, op, left, right, site)


def arithmetic(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp):
        yield from _exchange(ARITHMETIC, node.op, node.left, node.right, site)


def augmented(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.AugAssign):
        yield from _exchange(AUGMENTED, node.op, node.target, node.value, site)


def _exchange(
    table: Mapping[type[Any], tuple[str, tuple[str, ...]]],
    op: ast.AST,
    left: ast.AST,
    right: ast.AST,
    site: Site,
) -> Iterator[Edit]:
    token, others = table.get(type(op), ("", ()))
    where = site.between(left, right, token) if token else None
    if where is not None:
        yield from (Edit(*where, other) for other in others)


def constant(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield from site.replace(node, str(node.value + 1))
        if not (isinstance(site.parents.get(node), ast.UnaryOp) and node.value <= 1):
            yield from site.replace(node, str(node.value - 1))


def truth(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield from site.replace(node, str(not node.value))
        yield from site.replace(node, "None")


def string(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and site.text(node)[:1] in ("'", '"'):
        yield from site.replace(node, '""' if node.value else '" "')


def boolean(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        token, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            where = site.between(left, right, token)
            if where is not None:
                yield Edit(*where, other)


def drop_not(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from site.replace(node, re.sub(r"^not\b\s*", "", site.text(node)))


def drop_condition(node: ast.AST, site: Site) -> Iterator[Edit]:
    whole = site.span(node) if isinstance(node, ast.BoolOp) else None
    if whole is None or not isinstance(node, ast.BoolOp):
        return
    token = "and" if isinstance(node.op, ast.And) else "or"
    gaps = [site.between(left, right, token) for left, right in zip(node.values, node.values[1:], strict=False)]
    starts = [whole[1], *(gap[2] for gap in gaps if gap)]
    stops = [*(gap[1] for gap in gaps if gap), whole[2]]
    if len(starts) != len(node.values):
        return
    parts = [site.lines[whole[0] - 1][start:stop].strip() for start, stop in zip(starts, stops, strict=True)]
    for index in reversed(range(len(parts))):
        yield Edit(*whole, f" {token} ".join(parts[:index] + parts[index + 1 :]))


def sign(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from site.replace(node, re.sub(r"^-\s*", "", site.text(node)))


def slice_bound(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is None:
                continue
            yield from site.replace(bound, "")
            if not isinstance(bound, ast.Constant):
                yield from _off_by_one(bound, site)


def range_stop(node: ast.AST, site: Site) -> Iterator[Edit]:
    if _calls(node, "range") and isinstance(node, ast.Call) and node.args:
        stop = node.args[0] if len(node.args) == 1 else node.args[1]
        if not isinstance(stop, ast.Constant | ast.UnaryOp):
            yield from _off_by_one(stop, site)


def _off_by_one(node: ast.expr, site: Site) -> Iterator[Edit]:
    """`n + 1` and `n - 1` become `n`; a plain expression gets one added or taken."""
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value == 1:
        yield from site.replace(node, site.text(node.left))
    elif isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
        yield from site.replace(node, f"{site.text(node)} + 1")
        yield from site.replace(node, f"{site.text(node)} - 1")


def swap_arguments(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        for left, right in zip(node.args, node.args[1:], strict=False):
            one, two = site.span(left), site.span(right)
            if one and two and one[0] == two[0] and not isinstance(right, ast.GeneratorExp):
                gap = site.lines[one[0] - 1][one[2] : two[1]]
                yield Edit(one[0], one[1], two[2], f"{site.text(right)}{gap}{site.text(left)}")


def twin(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        name, where = node.func, site.span(node.func)
        if isinstance(name, ast.Name) and name.id in TWINS:
            yield from site.replace(name, TWINS[name.id])
        elif isinstance(name, ast.Attribute) and name.attr in TWINS and where is not None:
            yield Edit(where[0], where[2] - len(name.attr), where[2], TWINS[name.attr])


def returned(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
        others = [name for name in site.names if name != node.value.id]
        for other in others[-1:] + others[:-1][:1]:
            yield from site.replace(node.value, other)


def variable(node: ast.AST, site: Site) -> Iterator[Edit]:
    """A name read as a call's argument, an index or an operand becomes one of the next two names of the function."""
    if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in site.names):
        return
    parent = site.parents.get(node)
    argument = isinstance(parent, ast.Call) and node in parent.args
    if argument or isinstance(parent, ast.BinOp | ast.Compare | ast.AugAssign):
        at = site.names.index(node.id)
        for other in (site.names[at + 1 :] + site.names[:at])[:2]:
            yield from site.replace(node, other)


def branches(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.IfExp):
        body, test, other = (site.text(part) for part in (node.body, node.test, node.orelse))
        if body and test and other and site.text(node) == f"{body} if {test} else {other}":
            yield from site.replace(node, f"{other} if {test} else {body}")


def loop_control(node: ast.AST, site: Site) -> Iterator[Edit]:
    if isinstance(node, ast.Break):
        yield from site.replace(node, "continue")
    elif isinstance(node, ast.Continue):
        yield from site.replace(node, "break")


def remove_statement(node: ast.AST, site: Site) -> Iterator[Edit]:
    """An update, or a call whose value is dropped, becomes `pass`; a first binding stays."""
    updates = isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript | ast.Attribute)
    )
    if updates or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield from site.replace(node, "pass")


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


OPERATORS: dict[str, Operator] = {
    "compare": Operator("another comparison: `<` for `<=`, `!=` for `==`, `not in` for `in`", compare),
    "arithmetic": Operator("another arithmetic operator: `-` for `+`, `//` for `%`", arithmetic),
    "augmented": Operator("another augmented assignment: `-=` for `+=`, or a plain `=`", augmented),
    "constant": Operator("an integer one too large or one too small", constant),
    "truth": Operator("`True` for `False` and back, or `None` for either", truth),
    "string": Operator("an empty string for a text, a blank for an empty string", string),
    "boolean": Operator("`or` for `and` and back", boolean),
    "drop-not": Operator("a `not` left out", drop_not),
    "drop-condition": Operator("one operand of `and` or `or` left out", drop_condition),
    "sign": Operator("a minus left out", sign),
    "slice": Operator("a slice bound left out or off by one", slice_bound),
    "range": Operator("the end of a `range` off by one", range_stop),
    "swap-arguments": Operator("two neighboring arguments of a call exchanged", swap_arguments),
    "twin": Operator("the opposite function: `max` for `min`, `rstrip` for `lstrip`", twin),
    "return": Operator("another variable returned", returned),
    "variable": Operator("another variable read", variable),
    "branches": Operator("the two values of an `if` expression exchanged", branches),
    "loop-control": Operator("`continue` for `break` and back", loop_control),
    "remove-statement": Operator("an update or a call replaced by `pass`", remove_statement),
}
