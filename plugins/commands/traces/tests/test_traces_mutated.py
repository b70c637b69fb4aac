"""A document that nothing is wrong with is read, and keeps what tools returned: whatever stands in it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_core.types import Call
from composer_plugin_traces.atif import check_atif, from_atif, to_atif
from composer_plugin_traces.episodes import Act, Episode, Said, Tokens
from composer_plugin_traces.openai import check_openai, from_openai, to_openai

CALLS = (Call("a", "grep", {"pattern": "x"}), Call("b", "read_file", {"path": "y"}))
EPISODE = Episode(
    id="one",
    task="t",
    opening=(Said("system", "Work."), Said("user", "Mend it.")),
    acts=(
        Act("Look.", CALLS, ("found", "text"), Tokens((1, 2), (3, 4), (-0.5, -1.0))),
        Act("Done.", (Call("c", "finish", {}),), ("ended",), Tokens((1,), (5,), (-0.1,))),
    ),
    tools=({"name": "grep", "description": "Search.", "parameters": {"type": "object"}},),
    outcome="solved",
    stop="finished",
    reward=1.5,
    patch="--- a\n",
)
GONE = object()
JUNK = [GONE, None, True, 0, -1, 7, 0.5, float("nan"), "", "a", "b", [], {}, ["a"], [None], [0.5], [True], {"x": 1}]
JUNK += [{"type": "text", "text": 3}, [{"type": "text", "text": 3}], [{"type": "text", "text": "part"}], [{"name": 3}]]
CHANGES = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(JUNK)), min_size=1, max_size=3)


def atif(names: bool = True) -> Any:
    """A document with all that is read, its results named or not."""
    document = to_atif(EPISODE)
    document["steps"][2]["reasoning_content"] = "hm"
    document["steps"][1]["message"] = [{"type": "text", "text": "Mend "}, {"type": "text", "text": "it."}]
    for step in document["steps"][2:] if not names else []:
        for result in step["observation"]["results"]:
            del result["source_call_id"]
    return document


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys, at every level."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places(inner)


def mutated(document: Any, changes: list[tuple[int, Any]]) -> Any:
    """A copy with values replaced, or gone."""
    copy = deepcopy(document)
    for number, junk in changes:
        if known := list(places(copy)):
            container, key = known[number % len(known)]
            if junk is GONE:
                del container[key]
            else:
                container[key] = deepcopy(junk)
    return copy


def text(content: Any) -> str:
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def kept(episode: Episode) -> list[str]:
    return sorted(filter(None, (result for act in episode.acts for result in act.results)))


@settings(max_examples=400, deadline=None)
@given(st.booleans(), CHANGES)
def test_an_atif_document_that_passes_is_read_and_keeps_every_result(names: bool, changes: list[tuple[int, Any]]):
    document = mutated(atif(names), changes)
    if check_atif(document):
        return
    episode = from_atif(document)
    observed = [(step.get("observation") or {}).get("results", ()) for step in document["steps"]]
    assert kept(episode) == sorted(filter(None, (text(one.get("content")) for each in observed for one in each)))
    assert check_atif(to_atif(episode)) == [], "what was read can be written"


@settings(max_examples=400, deadline=None)
@given(CHANGES)
def test_a_row_of_messages_that_passes_is_read_and_keeps_every_result(changes: list[tuple[int, Any]]):
    row = mutated(to_openai(EPISODE), changes)
    if check_openai(row):
        return
    episode = from_openai(row)
    assert kept(episode) == sorted(
        one["content"] for one in row["messages"] if one["role"] == "tool" and one["content"]
    )
    assert check_atif(to_atif(episode)) == [], "what was read can be written"
    assert "None" not in (episode.id, episode.task, episode.stop)


WRONG = {
    "agent/tool_definitions": (["x"], "agent.tool_definitions[0]: must be an object, found str"),
    "agent/tool_definitions/0/function": ("x", "agent.tool_definitions[0].function: must be dict, found str"),
    "agent/tool_definitions/0/function/name": (3, "tool_definitions[0].function.name: must be str, found int"),
    "steps/1/message": ([{"type": "text", "text": 3}], "steps[1].message[0].text: must be str, found int"),
    "steps/2/observation/results/0/content": ([{"type": "text"}], "results[0].content[0].text: is missing"),
    "steps/2/metrics/logprobs": ([0.0, "x"], "steps[2].metrics.logprobs: must hold numbers"),
    "final_metrics": ({"total_steps": "x"}, "final_metrics.total_steps: must be int, found str"),
    "final_metrics/cost": (1, "final_metrics.cost: is unknown"),
}


@pytest.mark.parametrize("path", WRONG)
def test_what_is_wrong_deep_inside_is_told_with_its_place(path: str):
    value, said = WRONG[path]
    document = to_atif(EPISODE)
    *above, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place: Any = document
    for part in above:
        place = place[part]
    place[last] = value
    found = [str(problem) for problem in check_atif(document)]
    assert any(said in one for one in found), found


def with_results(*results: dict[str, Any], step: int = 2) -> Any:
    document = to_atif(EPISODE)
    document["steps"][step]["observation"] = {"results": list(results)}
    return document


def test_results_that_name_no_call_are_those_of_the_calls_without_one_in_order():
    both = with_results({"content": "1"}, {"content": "2"})
    assert check_atif(both) == [] and from_atif(both).acts[0].results == ("1", "2")
    mixed = with_results({"content": "2"}, {"source_call_id": "a", "content": "1"})
    assert check_atif(mixed) == [] and from_atif(mixed).acts[0].results == ("1", "2")


def test_a_result_that_no_call_is_left_for_is_refused_and_never_dropped():
    said = ("no call of this step is left without a result", "the call 'a' has its result already")
    for document in (
        with_results(*[{"content": str(number)} for number in range(3)]),
        with_results({"source_call_id": "a", "content": "1"}, {"source_call_id": "a", "content": "2"}),
        with_results({"content": "of nobody"}, step=1),
    ):
        (found,) = map(str, check_atif(document))
        assert "observation.results[" in found and found.endswith(said)


def test_whether_a_row_was_resolved_is_not_guessed():
    assert from_openai({**to_openai(EPISODE), "resolved": 1}).outcome == "solved"
    (found,) = map(str, check_openai({**to_openai(EPISODE), "resolved": "false"}))
    assert found == "row.resolved: must be true or false, found 'false'"
