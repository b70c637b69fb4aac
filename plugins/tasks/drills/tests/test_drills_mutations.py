"""The mutation engine: each operator, one line at a time, formatting kept, on any package."""

import ast
import difflib
import inspect
import textwrap

import pytest

from composer_plugin_drills.mutations import Mutation, mutate, replace_line
from composer_plugin_drills.operators import OPERATORS

CASES = {
    "compare": ("if a < b:\n    return 1", {"if a <= b:", "if a > b:"}),
    "arithmetic": ("return a + b", {"return a - b", "return a * b"}),
    "augmented": ("a += b", {"a -= b", "a = b"}),
    "constant": ("return a[1]", {"return a[2]", "return a[0]"}),
    "truth": ("return True", {"return False", "return None"}),
    "string": ("return a or 'x'", {'return a or ""'}),
    "boolean": ("return a and b", {"return a or b"}),
    "drop-not": ("return not a", {"return a"}),
    "drop-condition": ("return (a or b) and not c", {"return (a or b)", "return not c", "return (b) and not c"}),
    "sign": ("return a[::-1]", {"return a[::1]"}),
    "slice": ("return a[b:1]", {"return a[:1]", "return a[b + 1:1]", "return a[b - 1:1]", "return a[b:]"}),
    "range": ("return range(2, a + 1)", {"return range(2, a)"}),
    "swap-arguments": ("return pow(a,  b)", {"return pow(b,  a)"}),
    "twin": ("return min(a).lstrip(b)", {"return max(a).lstrip(b)", "return min(a).rstrip(b)"}),
    "return": ("return b", {"return c", "return a"}),
    "variable": ("return a + 1", {"return b + 1", "return c + 1"}),
    "branches": ("return a if b else c", {"return c if b else a"}),
    "loop-control": ("for d in a:\n    break", {"continue"}),
    "remove-statement": ("a.append(b)", {"pass"}),
}


def lines_of(body: str, operator: str) -> set[str]:
    source = f"def f(a, b, c):\n{textwrap.indent(body, '    ')}\n"
    return {one.after.strip() for one in mutate(source, "f") if one.operator == operator}


def test_every_operator_has_a_case() -> None:
    assert CASES.keys() == OPERATORS.keys()


@pytest.mark.parametrize("operator", CASES)
def test_an_operator_writes_its_bugs(operator: str) -> None:
    body, expected = CASES[operator]
    found = lines_of(body, operator)
    assert found >= expected if operator == "drop-condition" else found == expected


@pytest.mark.parametrize("operator", CASES)
def test_an_operator_passes_by_what_it_is_not_about(operator: str) -> None:
    assert not lines_of("'''doc'''\nglobal x", operator)


@pytest.mark.parametrize("module", [ast, difflib, inspect, textwrap])
def test_it_works_on_any_module_and_changes_one_line_that_still_compiles(module: object) -> None:
    source = inspect.getsource(module)  # type: ignore[arg-type]
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)][:12]
    mutations = [one for name in names for one in mutate(source, name)]
    assert len(mutations) > 10
    for one in mutations[::5]:
        changed = one.apply(source)
        compile(changed, "mutant", "exec")
        pairs = zip(source.split("\n"), changed.split("\n"), strict=True)
        assert [number for number, (old, new) in enumerate(pairs, 1) if old != new] == [one.line]
        assert one.before[one.column :].startswith(one.fragment)


def test_methods_are_named_by_their_class() -> None:
    source = "class Stack:\n    def push(self, x):\n        self.n += 1\n"
    assert {one.function for one in mutate(source, "Stack.push")} == {"Stack.push"}
    assert {one.line for one in mutate(source, "Stack.push")} == {3}


@pytest.mark.parametrize("name", ["g", "Stack", "Stack.pop", "f.x"])
def test_an_unknown_function_is_a_lookup_error(name: str) -> None:
    with pytest.raises(LookupError):
        mutate("class Stack:\n    pass\n\ndef f():\n    pass\n", name)


def test_formatting_comments_and_wide_characters_survive() -> None:
    source = "def f(a):\n    return 'é…' * (a   +  1)  # why, naïve\n"
    found = {one.after for one in mutate(source, "f") if one.operator == "arithmetic"}
    assert "    return 'é…' * (a   -  1)  # why, naïve" in found


def test_order_is_fixed_and_no_mutant_is_listed_twice() -> None:
    source = inspect.getsource(textwrap)
    one, two = (mutate(source, "dedent") for _ in range(2))
    assert one == two
    assert [(m.line, m.column) for m in one] == sorted((m.line, m.column) for m in one)
    assert len({(m.line, m.after) for m in one}) == len(one)


def test_nodes_of_several_lines_are_passed_by() -> None:
    source = "def f(a):\n    return (a\n        + 1)\n"
    assert {one.operator for one in mutate(source, "f")} == {"constant"}


def test_a_mutation_of_another_text_is_refused() -> None:
    mutation = Mutation("compare", "f", 2, 0, "<", ">", "a < b", "a > b")
    with pytest.raises(ValueError, match="line 2"):
        mutation.apply("def f():\n    pass\n")
    with pytest.raises(ValueError, match="line 9"):
        replace_line("x\n", 9, "x", "y")
