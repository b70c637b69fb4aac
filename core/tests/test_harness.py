"""The stamp of a harness: equal for equal harnesses, another for anything the policy would see differently."""

import json

import pytest
from attrs import evolve

from composer_core.errors import ConfigError
from composer_core.harness import Harness
from composer_core.types import Limits

READ = {"id": "code/read", "name": "read", "description": "Read.", "parameters": {"type": "object"}, "settings": {}}
EDIT = {**READ, "id": "code/edit", "name": "edit"}
BASE = Harness((READ, EDIT), {"id": "hf/xml", "settings": {}}, {"id": "core/plain"}, "abc")


def others():
    yield "another description", evolve(BASE, tools=({**READ, "description": "Look."}, EDIT))
    yield "another setting of a tool", evolve(BASE, tools=({**READ, "settings": {"lines": True}}, EDIT))
    yield "one tool less", evolve(BASE, tools=(READ,))
    yield "another order of tools", evolve(BASE, tools=(EDIT, READ))
    yield "another renderer", evolve(BASE, renderer={"id": "hf/hermes", "settings": {}})
    yield "another context", evolve(BASE, context={"id": "summary/summary"})
    yield "another tokenizer", evolve(BASE, tokenizer="abd")


def test_equal_harnesses_have_one_stamp():
    again = Harness((dict(READ), dict(EDIT)), {"settings": {}, "id": "hf/xml"}, {"id": "core/plain"}, "abc")
    assert again.stamp(Limits()) == BASE.stamp(Limits())
    again.refuse_other(json.loads(json.dumps(BASE.to_json())), "harness.json")


@pytest.mark.parametrize("other", [case[1] for case in others()], ids=[case[0] for case in others()])
def test_whatever_the_policy_would_see_differently_changes_the_stamp_and_is_refused(other):
    assert other.stamp(Limits()) != BASE.stamp(Limits())
    with pytest.raises(ConfigError, match="not the one this policy was trained in"):
        other.refuse_other(json.loads(json.dumps(BASE.to_json())), "harness.json")


def test_limits_are_part_of_the_stamp_alone():
    assert BASE.stamp(Limits(turns=9)) != BASE.stamp(Limits(turns=8))


def test_the_refusal_names_what_differs():
    with pytest.raises(ConfigError, match="tools: code/edit"):
        evolve(BASE, tools=(READ, {**EDIT, "description": "Change."})).refuse_other(BASE.to_json(), "x")
