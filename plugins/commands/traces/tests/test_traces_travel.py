"""Traces as others read them: round trips, validators, the commands, and imitation of what was imported."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner

from composer_core import BuildContext
from composer_core.cli import group
from composer_core.errors import ConfigError, SamplerError, UserError
from composer_core.traces import decode, encode
from composer_core.types import Call, GenerateRequest, GenerateSettings, SlotKey, Trace
from composer_plugin_traces.atif import check_atif, from_atif, to_atif
from composer_plugin_traces.episodes import INVALID, Episode, episode_of, without_tokens
from composer_plugin_traces.openai import check_openai, from_openai, to_openai
from composer_plugin_traces.plugin import RecordedConfig
from composer_plugin_traces.recorded import RecordedSampler, build
from composer_plugin_traces.sharegpt import check_sharegpt, to_sharegpt
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.fakes.runs import make_trace
from composer_testing.fakes.text import END, ByteTokenizer, LineRenderer

TOOLS = [
    {"name": "grep", "description": "Search.", "parameters": {"type": "object"}, "id": "code/grep", "effect": "read"}
]


class TestHookModule(HookModuleContract):
    module = "composer_plugin_traces.plugin"


def trace(solved: bool = True, task: str = "task-1") -> Trace:
    return make_trace(SlotKey(task, 0), solved)


def with_a_bad_call() -> Trace:
    """A turn whose first call was not read, and whose second named no tool."""
    whole = trace(solved=False)
    bad = Call("c1", "", {}, problem="malformed", detail="not JSON"), Call("c2", "grpe", {"a": 1}, "unknown_tool", "?")
    return evolve(whole, turns=(evolve(whole.turns[0], calls=bad), *whole.turns[1:]))


EPISODES = [episode_of(trace(), TOOLS), episode_of(trace(solved=False)), episode_of(with_a_bad_call(), TOOLS)]


@pytest.mark.parametrize("episode", EPISODES)
def test_a_round_trip_through_openai_messages_loses_token_ids_alone(episode: Episode):
    row = json.loads(json.dumps(to_openai(episode)))
    assert check_openai(row) == []
    assert from_openai(row) == without_tokens(episode)


@pytest.mark.parametrize("episode", EPISODES)
def test_a_round_trip_through_atif_loses_nothing(episode: Episode):
    document = json.loads(json.dumps(to_atif(episode)))
    assert check_atif(document) == []
    assert from_atif(document) == episode


@pytest.mark.parametrize("episode", EPISODES)
def test_sharegpt_holds_every_word_call_and_result(episode: Episode):
    row = to_sharegpt(episode)
    assert check_sharegpt(row) == []
    text = json.dumps([turn["value"] for turn in row["conversations"]])
    assert all(json.dumps(act.text)[1:-1] in text for act in episode.acts)
    assert [turn["from"] for turn in row["conversations"]][:4] == ["human", "gpt", "function_call", "observation"]


def test_token_ids_are_those_that_were_sampled_and_those_before_them():
    one = trace()
    steps = [step for step in to_atif(episode_of(one))["steps"] if step["source"] == "agent"]
    ids = list(one.branches[0].ids.values())
    for turn, step in zip(one.turns, steps, strict=True):
        assert step["metrics"]["prompt_token_ids"] == ids[: turn.start]
        assert step["metrics"]["completion_token_ids"] == ids[turn.start : turn.stop]
        assert len(step["metrics"]["logprobs"]) == turn.stop - turn.start


def test_a_call_that_was_not_read_travels_with_its_problem_and_a_wrong_one_as_it_was():
    first, second = from_openai(to_openai(EPISODES[2])).acts[0].calls
    assert (first.name, first.problem, first.detail) == (INVALID, "malformed", "not JSON")
    assert (second.name, second.arguments, second.problem) == ("grpe", {"a": 1}, None)
    assert not EPISODES[2].playable and EPISODES[0].playable


def test_thoughts_of_others_are_words_here():
    document = to_atif(EPISODES[0])
    document["steps"][2]["reasoning_content"] = "hm"
    assert check_atif(document) == []
    assert from_atif(document).acts[0].text == f"<think>hm</think>{EPISODES[0].acts[0].text}"


# --- what is wrong with a document


def changed(document: Any, path: str, value: Any) -> Any:
    """A copy with one value replaced, or gone where it is None."""
    copy = deepcopy(document)
    *above, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place = copy
    for part in above:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return copy


WRONG_ATIF = {
    "surprise": (1, "trajectory.surprise: is unknown"),
    "schema_version": ("ATIF-v2.0", "must be ATIF-v1.0 to ATIF-v1.7"),
    "agent/version": (None, "agent.version: is missing"),
    "steps": ([], "there is none"),
    "steps/1/step_id": (7, "must be 2, found 7"),
    "steps/1/source": ("human", "must be system, user or agent"),
    "steps/1/metrics": ({}, "is of the agent only"),
    "steps/2/note": ("x", "steps[2].note: is unknown"),
    "steps/2/message": ([{"type": "image"}], "parts that are no text"),
    "steps/2/tool_calls/0/arguments": ("ls", "must be dict, found str"),
    "steps/2/observation/results/0/source_call_id": ("c9", "no call of this step"),
    "steps/2/metrics/prompt_tokens": (1.5, "must be int, found float"),
    "steps/2/metrics/completion_token_ids": ([-1], "whole numbers from 0 on"),
    "steps/2/metrics/logprobs": ([0.0], "one for each completion token"),
}
WRONG_OPENAI = {
    "messages": ({}, "must be list"),
    "messages/1/role": ("human", "must be one of system"),
    "messages/2/tool_calls/0/function/arguments": ("{", "must be JSON text"),
    "messages/2/tool_calls/1/function/name": (None, "name: is missing"),
    "messages/3/tool_call_id": ("other", "is not the next call"),
    "messages/3/content": (None, "content: is missing"),
    "messages/5": ({"role": "user", "content": "and?"}, "only one task is imitated"),
    "tools/0/function": ({}, "tools[0].function.name: is missing"),
}
WRONG_SHAREGPT = {
    "conversations/0/from": ("user", "must be one of human"),
    "conversations/2/value": ("{", "must be JSON"),
    "conversations/2": ({"from": "human", "value": ""}, "behind a function_call only"),
    "conversations/0/value": (None, "value: is missing"),
}
CHECKS = [
    (check, write, path, *told)
    for check, write, wrong in (
        (check_atif, to_atif, WRONG_ATIF),
        (check_openai, to_openai, WRONG_OPENAI),
        (check_sharegpt, to_sharegpt, WRONG_SHAREGPT),
    )
    for path, told in wrong.items()
]


@pytest.mark.parametrize(("check", "write", "path", "value", "said"), CHECKS)
def test_a_validator_says_what_is_wrong_and_where(check: Any, write: Any, path: str, value: Any, said: str):
    found = [str(problem) for problem in check(changed(write(EPISODES[0]), path, value))]
    assert any(said in text for text in found), found


@pytest.mark.parametrize("check", [check_atif, check_openai, check_sharegpt])
@pytest.mark.parametrize("document", [None, [], 3, "x", {}, {"messages": [1]}, {"conversations": [None]}])
def test_a_validator_refuses_whatever_is_no_document(check: Any, document: Any):
    assert check(document)


def test_a_conversation_that_goes_on_is_refused_and_never_reordered():
    document = to_atif(EPISODES[0])
    later = {"step_id": len(document["steps"]) + 1, "source": "user", "message": "and now"}
    (found,) = check_atif({**document, "steps": [*document["steps"], later]})
    assert "a step of the user stands after the agent's first" in str(found)


def test_results_stay_with_their_calls_where_one_has_none():
    calls = [{"tool_call_id": id, "function_name": "grep", "arguments": {}} for id in "ab"]
    results = {"results": [{"source_call_id": "b", "content": "found"}]}
    step = {"step_id": 1, "source": "agent", "message": "", "tool_calls": calls, "observation": results}
    whole = {**to_atif(EPISODES[0]), "steps": [step]}
    assert check_atif(whole) == []
    assert from_atif(whole).acts[0].results == ("", "found")


# --- the commands


def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "traces" / "rl").mkdir(parents=True)
    for task, solved in (("a", True), ("b", False)):
        (run / "traces" / f"rl-{task}-0.trace").write_bytes(encode(trace(solved, task)))
    (run / "harness.json").write_text(json.dumps({"tools": TOOLS}))
    return run


def invoke(*words: Any) -> str:
    found = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    assert not found.exit_code, found.output
    return found.output


@pytest.mark.parametrize("name", ["openai", "atif"])
def test_what_is_exported_can_be_imported(tmp_path: Path, name: str):
    out, back = tmp_path / "out.jsonl", tmp_path / "episodes.jsonl"
    assert invoke("export", folder(tmp_path), out, "--format", name).startswith("2 episodes")
    told = invoke("import", out, back, "--format", name)
    assert told.startswith(f"2 episodes, {2 if name == 'atif' else 0} with token ids, 2 can be rendered")
    episodes = [from_atif(json.loads(line)) for line in back.read_text().splitlines()]
    assert [(one.task, one.outcome) for one in episodes] == [("a", "solved"), ("b", "failed")]
    assert episodes[0].tools[0]["name"] == "grep" and "effect" not in episodes[0].tools[0]


def test_an_export_may_be_of_some_episodes(tmp_path: Path):
    run, out = folder(tmp_path), tmp_path / "out"
    assert invoke("export", run, out, "--solved", "--format", "sharegpt").startswith("1 episodes")
    assert invoke("export", run, out, "--only", "rl-b").startswith("1 episodes")
    with pytest.raises(ConfigError, match="no traces"):
        invoke("export", tmp_path, out)


def test_an_export_is_of_training_and_takes_evaluations_when_asked_and_probes_never(tmp_path: Path):
    run, out = folder(tmp_path), tmp_path / "out"
    keys = [SlotKey("c", 0, "eval-policy-t1.0", "before"), SlotKey("c", 0, "eval-policy-t1.0", "step-2")]
    keys += [SlotKey("c", 0, "parity", "rl-3")]
    for key in keys:
        (run / "traces" / f"{key.episode_id}.trace").write_bytes(encode(evolve(trace(), key=key)))
    told = invoke("export", run, out)
    assert told.startswith("2 episodes")
    assert "left out: 2 of evaluations (--evaluations takes them); left out: 1 parity probes" in told
    ids = [json.loads(line)["trajectory_id"] for line in out.read_text().splitlines()]
    assert ids == ["rl-a-0", "rl-b-0"]
    assert invoke("export", run, out, "--only", "rl-").startswith("2 episodes"), "a probe's id begins with its stage's"
    assert invoke("export", run, out, "--evaluations").startswith("4 episodes")
    assert invoke("export", run, out, "--evaluations", "--only", "before-").startswith("1 episodes")


def test_an_import_says_what_is_wrong_and_writes_nothing(tmp_path: Path):
    file, out = tmp_path / "in", tmp_path / "out"
    file.write_text(json.dumps([to_openai(EPISODES[0]), {"messages": []}]))
    with pytest.raises(UserError, match=r"document 2(.|\n)*no turn of the assistant"):
        invoke("import", file, out)
    file.write_text("{}\n{")
    with pytest.raises(UserError, match="line 2"):
        invoke("import", file, out)
    assert not out.exists()
    file.write_text(json.dumps(to_openai(EPISODES[0]), indent=1))
    assert invoke("import", file, "--check").startswith("1 episodes, 0 with token ids")


# --- imitation


def recorded(tmp_path: Path, *episodes: Episode, **fields: Any) -> RecordedSampler:
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(json.dumps(to_atif(one)) + "\n" for one in episodes))
    renderer = LineRenderer(ByteTokenizer())
    return build(
        RecordedConfig(path=str(path), **fields), BuildContext(tmp_path, get={"renderers": renderer}.__getitem__)
    )


def play(sampler: RecordedSampler, turns: int, task: str = "task-1", attempt: int = 0) -> list[list[int]]:
    import asyncio

    async def main() -> list[list[int]]:
        settings = GenerateSettings(10_000, frozenset({END}))
        request = GenerateRequest("s", task_id=task, attempt=attempt)
        found = [await sampler.generate([1], settings, request) for _ in range(turns)]
        await sampler.release("s")
        return [list(one.ids.values()) for one in found]

    return asyncio.run(main())


def test_recorded_turns_are_rendered_by_the_runs_renderer_and_then_there_is_nothing_to_say(tmp_path: Path):
    sampler = recorded(tmp_path, EPISODES[0])
    rows = play(sampler, 5)
    turns = [LineRenderer(ByteTokenizer()).parse(row) for row in rows]
    assert [turn.text for turn in turns] == [*(act.text for act in EPISODES[0].acts), ""]
    assert [[call.name for call in turn.calls] for turn in turns][:2] == [["read_file", "grep"], ["edit_file"]]
    assert play(sampler, 1) == rows[:1], "a session that was released begins anew"


def test_recorded_token_ids_are_given_as_they_are(tmp_path: Path):
    rows = play(recorded(tmp_path, EPISODES[0], token_ids=True), 2)
    assert rows == [list(act.tokens.completion) for act in EPISODES[0].acts[:2] if act.tokens]


def test_attempts_play_the_episodes_of_their_task_in_turn(tmp_path: Path):
    sampler = recorded(tmp_path, EPISODES[0], EPISODES[1])
    assert play(sampler, 4, attempt=0) == play(sampler, 4, attempt=2) != play(sampler, 4, attempt=1)
    with pytest.raises(SamplerError, match="'other'"):
        play(sampler, 1, task="other")


def test_episodes_that_cannot_be_played_are_left_out(tmp_path: Path):
    with pytest.raises(ConfigError, match="no recorded episode can be played"):
        recorded(tmp_path, EPISODES[2])
    assert play(recorded(tmp_path, EPISODES[2], token_ids=True), 1)
    with pytest.raises(ConfigError, match="token ids of every turn"):
        recorded(tmp_path, without_tokens(EPISODES[0]), token_ids=True)
    (tmp_path / "episodes.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="composer-run import"):
        build(RecordedConfig(path=str(tmp_path / "episodes.jsonl")), BuildContext(tmp_path))


RUN = """
name = "imitation"
plugins = ["fakes"]
tasks = { use = "fakes/sums", count = 12 }
sandbox.use = "fakes/memory"
tools.use = ["fakes/read", "fakes/write", "fakes/done"]
model.use = "fakes/bytes"
renderer.use = "fakes/lines"
sampler.use = "fakes/learner"
samplers.shown = { use = "fakes/learner", start = 0.9 }
trainer.use = "fakes/simulated"
rewards = [{ use = "fakes/checked" }]
trackers = ["core/jsonl"]

[[stages]]
kind = "sft"
sampler = "shown"
episodes = 4
steps = 2
batch_episodes = 4

[[evaluations]]
name = "main"
split = "train"
tasks = 3
attempts = 1
when = ["after"]
"""


@pytest.mark.parametrize(("name", "token_ids"), [("openai", "false"), ("atif", "true")])
def test_a_run_imitates_what_another_run_did(tmp_path: Path, name: str, token_ids: str):
    """From the traces of one run, by way of a file, to the episodes of an sft stage of another."""
    file, out, back = tmp_path / "run.toml", tmp_path / "out", tmp_path / "back"
    file.write_text(RUN)
    invoke("train", file, "--run-dir", tmp_path / "first")
    told = invoke("export", tmp_path / "first", out, "--format", name)
    assert told.startswith("4 episodes") and "left out: 3 of evaluations" in told
    invoke("import", out, back, "--format", name)
    recorded = f'samplers.shown={{use="traces/recorded", path="{back}", token_ids={token_ids}}}'
    invoke("--plugins", "traces", "train", file, "--run-dir", tmp_path / "second", "--set", recorded)
    first, second = (sampled(tmp_path / run) for run in ("first", "second"))
    assert len(first) == 4 and first == second


def sampled(run_dir: Path) -> dict[str, list[tuple[str, Any]]]:
    """What was called in each episode of a run."""
    traces = [decode(one.read_bytes()) for one in (run_dir / "traces").rglob("sft-*.trace")]
    return {one.key.task_id: [(call.name, call.arguments) for call in one.calls()] for one in traces}
