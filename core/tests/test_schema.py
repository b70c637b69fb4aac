"""A typed function is a tool: schema, binding and calling."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_core.errors import ConfigError, PluginError, ToolError
from composer_core.protocols import ToolContext, ToolOutput
from composer_core.records import ToolSpec
from composer_core.schema import bind, call_tool, schema_of


class Row(TypedDict):
    id: str
    count: NotRequired[int]


@frozen
class Item:
    id: str
    status: Literal["open", "done"] = "open"


async def everything(
    context: ToolContext,
    text: str,
    whole: int,
    real: float = 0.5,
    flag: bool = False,
    mode: Literal["a", "b", 3] = "a",
    names: list[str] | None = None,
    env: dict[str, str] | None = None,
    rows: list[Row] | None = None,
    items: list[Item] | None = None,
    either: int | str = 0,
) -> str:
    """Do everything.

    At once.

    Args:
        text: what to do,
            first: in words
        whole: how often

    Returns:
        nothing
    """
    return repr((text, whole))


EVERYTHING = ToolSpec.of(everything)


def bound(**arguments: Any) -> dict[str, Any]:
    return bind(EVERYTHING, {"text": "t", "whole": 1, **arguments})


def refusal(spec: ToolSpec, arguments: dict[str, Any]) -> str:
    with pytest.raises(ToolError) as caught:
        bind(spec, arguments)
    return str(caught.value)


def test_the_schema_is_made_of_signature_and_docstring():
    schema = schema_of(EVERYTHING)
    assert schema.name == "everything"
    assert schema.description == "Do everything.\n\nAt once."
    assert schema.parameters["required"] == ["text", "whole"]
    properties = schema.parameters["properties"]
    assert "context" not in properties
    assert properties["text"] == {"type": "string", "description": "what to do, first: in words"}
    assert properties["whole"] == {"type": "integer", "description": "how often"}
    assert properties["real"] == {"type": "number"}
    assert properties["flag"] == {"type": "boolean"}
    assert properties["mode"] == {"enum": ["a", "b", 3]}
    assert properties["names"] == {"type": ["array", "null"], "items": {"type": "string"}}
    assert properties["env"] == {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
    assert properties["rows"]["items"] == {
        "type": "object",
        "properties": {"id": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["id"],
    }
    assert properties["items"]["items"]["properties"]["status"] == {"enum": ["open", "done"]}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def test_a_function_without_context_or_arguments_has_an_empty_schema():
    def nothing() -> str:
        return ""

    assert schema_of(ToolSpec.of(nothing)).parameters == {"type": "object", "properties": {}, "required": []}


def test_text_is_cast_by_the_schema():
    found = bound(
        whole=" 3 ", real="2.5", flag="true", mode="3", names='["a", "b"]', env="{'K': 'v'}", rows='[{"id": "x"}]'
    )
    assert found["whole"] == 3 and found["real"] == 2.5 and found["flag"] is True and found["mode"] == 3
    assert found["names"] == ["a", "b"] and found["env"] == {"K": "v"} and found["rows"] == [{"id": "x"}]
    assert bound(items='[{"id": "1", "status": "done"}]')["items"] == [Item("1", "done")]
    assert bound(names="null")["names"] is None
    assert bound(either="7")["either"] == 7 and bound(either="x")["either"] == "x"


def test_text_stays_text_where_text_is_expected():
    assert bound(text="3")["text"] == "3"
    assert bound(text="null")["text"] == "null"
    assert bound(text='{"a": 1}')["text"] == '{"a": 1}'


def test_values_of_the_right_type_pass_unchanged():
    given_values = {"whole": 2, "real": 1.5, "flag": False, "names": ["a"], "rows": [{"id": "a", "count": 2}]}
    assert bound(**given_values) == {"text": "t", **given_values}
    assert bound(whole=2.0)["whole"] == 2


def test_arguments_not_given_are_left_to_the_function():
    assert bound() == {"text": "t", "whole": 1}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"text": 3}, "text must be text, found 3"),
        ({"text": "\ud800"}, "text must be text without lone surrogates"),
        ({"whole": "3.5"}, "whole must be a whole number, found '3.5'"),
        ({"whole": True}, "whole must be a whole number, found true"),
        ({"whole": "9" * 5000}, "whole must be a whole number"),
        ({"real": "nan"}, "real must be a number"),
        ({"real": 10**400}, "real must be a number"),
        ({"flag": "yes"}, "flag must be true or false, found 'yes'"),
        ({"mode": "c"}, "mode must be one of a, b, 3, found 'c'"),
        ({"names": "a"}, "names must be a list (JSON), found 'a'"),
        ({"names": [1]}, "names[0] must be text, found 1"),
        ({"env": "[]"}, "env must be an object (JSON) with text keys"),
        ({"env": {"a": 1}}, "env['a'] must be text"),
        ({"rows": [{"count": 1}]}, "rows[0] must be an object (JSON) with id, count (optional)"),
        ({"items": '[{"id": "1", "status": "late"}]'}, "items[0].status must be one of open, done, found 'late'"),
        ({"names": "[" * 100_000}, "names must be a list"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_path(arguments: dict[str, Any], expected: str):
    assert expected in refusal(EVERYTHING, {"text": "t", "whole": 1, **arguments})


def test_an_unknown_argument_names_the_nearest_and_the_known_ones():
    text = refusal(EVERYTHING, {"txt": "t", "whole": 1})
    assert "no argument 'txt'" in text and "did you mean 'text'?" in text and "real (optional)" in text


def test_a_missing_argument_is_named():
    assert refusal(EVERYTHING, {}).startswith("everything needs arguments 'text', 'whole'; known: text, whole, real")


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_binding_returns_or_raises_a_tool_error(value: Any):
    for name in ("text", "whole", "real", "flag", "mode", "names", "env", "rows", "items", "either"):
        try:
            bound(**{name: value})
        except ToolError as error:
            assert name in str(error)


def untyped(path) -> str:
    return path


def spread(*paths: str) -> str:
    return ""


def strange(path: bytes) -> str:
    return ""


@pytest.mark.parametrize("function", [untyped, spread, strange])
def test_a_signature_without_a_schema_is_the_authors_error(function: Any):
    with pytest.raises(PluginError, match=function.__name__):
        schema_of(ToolSpec.of(function))


def run(function: Any, **arguments: Any) -> ToolOutput:
    spec = ToolSpec(name="t", function=function)
    context = ToolContext(sandbox=None, state={"seen": True})  # type: ignore[arg-type]
    return asyncio.run(call_tool(spec, function, context, arguments))


def test_text_and_tool_output_are_both_accepted():
    def words(text: str) -> str:
        return text

    async def facts(context: ToolContext, text: str) -> ToolOutput:
        return ToolOutput(text, data=context.state)

    assert run(words, text="a") == ToolOutput("a")
    assert run(facts, text="b") == ToolOutput("b", data={"seen": True})


def test_plain_functions_run_in_a_thread_with_the_callers_context_and_coroutines_on_the_loop():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("carried")

    def plain() -> str:
        return f"{threading.current_thread() is threading.main_thread()} {variable.get()}"

    async def on_loop() -> str:
        return str(threading.current_thread() is threading.main_thread())

    assert run(plain).text == "False carried"
    assert run(on_loop).text == "True"


def test_objects_with_an_async_call_are_tools():
    class Tool:
        async def __call__(self, context: ToolContext, text: str) -> str:
            return text

    assert run(Tool(), text="x").text == "x"


def test_other_results_and_stop_iteration_are_errors():
    def number() -> int:
        return 3

    def stops() -> str:
        raise StopIteration

    with pytest.raises(TypeError, match="returned int"):
        run(number)
    with pytest.raises(RuntimeError, match="StopIteration"):
        run(stops)


# --- per run: arguments left out, and no guesses


def test_an_argument_that_a_run_leaves_out_is_neither_told_nor_taken():
    without = ("flag", "env")
    told = schema_of(EVERYTHING, without).parameters["properties"]
    assert list(told) == [name for name in schema_of(EVERYTHING).parameters["properties"] if name not in without]
    with pytest.raises(ToolError, match="has no argument 'flag'") as caught:
        bind(EVERYTHING, {"text": "t", "whole": 1, "flag": True}, without)
    assert "env" not in str(caught.value)


@pytest.mark.parametrize(("name", "fix"), [("whole", "known: either"), ("flags", "did you mean 'flag'?")])
def test_only_an_optional_argument_can_be_left_out(name, fix):
    with pytest.raises(ConfigError, match="no optional argument") as caught:
        schema_of(EVERYTHING, (name,))
    assert fix in str(caught.value)


EXACT = {"whole": ["3", 3], "real": ["0.5", 1, 0.5], "flag": ["true", False], "names": ['["a"]', ["a"], None, "null"]}
GUESSED = {"whole": [" 3", 3.0, "3.0"], "flag": ["True", " true "], "names": ["['a']", "None"], "env": ["{'a': 'b'}"]}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in EXACT for value in EXACT[name]])
def test_a_value_in_its_own_spelling_is_taken_strictly_too(name, value):
    given = {"text": "3", "whole": 1, name: value}
    assert bind(EVERYTHING, given, strict=True) == bind(EVERYTHING, given)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in GUESSED for value in GUESSED[name]])
def test_a_value_that_had_to_be_guessed_is_refused_strictly_only(name, value):
    given = {"text": "t", "whole": 1, name: value}
    try:
        bind(EVERYTHING, given)
    except ToolError:
        assert (name, value) == ("whole", "3.0")
    with pytest.raises(ToolError, match=f"everything: {name} must be"):
        bind(EVERYTHING, given, strict=True)
