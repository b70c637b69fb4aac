"""Searches that several plugins may provide: one schema each, so that a policy meets the same tool whoever does.

Name the record that your hook yields; the parameters of the function are `query`, `folders`, `limit` for a semantic
search, `query` and `limit` for one of the web.

class TestMine(SemanticSearchContract):
    spec = next(iter(composer_tools()))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from composer_core.schema import schema_of
from composer_testing.contracts.tools import ToolContract


class SearchContract(ToolContract):
    """A search is a read, and takes what all of its name take. Subclass one of those below."""

    name: ClassVar[str]
    arguments: ClassVar[Mapping[str, Any]]
    """Argument -> its JSON schema but for the description."""

    def test_it_has_the_name_the_effect_and_the_arguments_that_policies_know(self) -> None:
        assert (self.spec.name, self.spec.effect) == (self.name, "read")
        parameters = schema_of(self.spec).parameters
        given = {name: {**schema} for name, schema in parameters["properties"].items()}
        for schema in given.values():
            schema.pop("description", None)
        assert given == self.arguments
        assert parameters["required"] == ["query"]


class SemanticSearchContract(SearchContract):
    """Passages of the workspace by meaning."""

    name = "semantic_search"
    arguments: ClassVar[Mapping[str, Any]] = {
        "query": {"type": "string"},
        "folders": {"type": ["array", "null"], "items": {"type": "string"}},
        "limit": {"type": "integer"},
    }


class WebSearchContract(SearchContract):
    """Pages of the web; off in training."""

    name = "web_search"
    arguments: ClassVar[Mapping[str, Any]] = {"query": {"type": "string"}, "limit": {"type": "integer"}}
