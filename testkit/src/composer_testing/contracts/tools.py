"""What every tool does. Subclass `ToolContract` and name the record that your hook yields:

class TestMine(ToolContract):
    spec = next(iter(composer_tools()))
"""

from __future__ import annotations

import inspect
import json
import pickle
from typing import ClassVar

import pytest

from composer_core import ToolError, ToolSpec
from composer_core.records import resolve
from composer_core.schema import bind, schema_of

EFFECTS = ("read", "write", "exec")


class ToolContract:
    """A tool has a schema that can be sent, refuses what does not fit it, and is cheap to list."""

    spec: ClassVar[ToolSpec]

    def test_its_schema_is_json_that_describes_it(self) -> None:
        schema = schema_of(self.spec)
        assert schema.name == self.spec.name and schema.description
        assert json.loads(json.dumps(dict(schema.parameters))) == schema.parameters
        assert schema.parameters["type"] == "object"
        assert set(schema.parameters["required"]) <= set(schema.parameters["properties"])

    def test_the_model_is_told_what_it_does_and_what_each_argument_is(self) -> None:
        where = f"the function of the tool {self.spec.name!r}"
        assert inspect.getdoc(resolve(self.spec.function)), f"{where} has no docstring; fix: say there what it does"
        properties = schema_of(self.spec).parameters["properties"]
        untold = [name for name, schema in properties.items() if not schema.get("description")]
        lines = "".join(f"\n    {name}: what it is" for name in untold)
        assert not untold, f"{where} does not tell what {', '.join(untold)} is; fix: in its docstring\n\nArgs:{lines}"

    def test_its_effect_is_known(self) -> None:
        assert self.spec.effect in EFFECTS

    def test_its_record_and_function_pickle(self) -> None:
        assert pickle.loads(pickle.dumps(self.spec)) == self.spec
        assert pickle.loads(pickle.dumps(resolve(self.spec.function))) is resolve(self.spec.function)

    def test_its_settings_have_defaults(self) -> None:
        assert self.spec.config() == self.spec.config()

    def test_an_unknown_argument_is_an_error_the_model_can_act_on(self) -> None:
        with pytest.raises(ToolError, match="no argument 'no_such_argument'"):
            bind(self.spec, {"no_such_argument": "x"})

    def test_a_missing_argument_is_named(self) -> None:
        required = schema_of(self.spec).parameters["required"]
        if not required:
            assert bind(self.spec, {}) == {}
            return
        with pytest.raises(ToolError) as caught:
            bind(self.spec, {})
        assert all(repr(name) in str(caught.value) for name in required)

    def test_an_argument_of_another_type_is_named(self) -> None:
        schema = schema_of(self.spec).parameters
        for name, hint in schema["properties"].items():
            others = {key: "1" for key in schema["required"] if key != name}
            with pytest.raises(ToolError) as caught:
                bind(self.spec, {name: object(), **others} if hint else {"no_such_argument": ""})
            assert self.spec.name in str(caught.value)

    def test_a_function_that_takes_a_context_takes_it_first(self) -> None:
        names = list(inspect.signature(resolve(self.spec.function)).parameters)
        assert "context" not in names[1:]
