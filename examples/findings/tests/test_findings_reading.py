"""What is kept of runs: tables, groups, figures and a loss, out of events and traces that are made here."""

import json

import pytest
import torch
from study import reading
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from composer_core.columns import Column
from composer_core.errors import ConfigError
from composer_core.traces import encode
from composer_core.types import Branch, SlotKey, Stop, Trace

TINY = Qwen3MoeConfig(
    vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8
)


def ended(task, attempt, outcome, purpose="after/main", **parts):
    known = dict.fromkeys((*reading.PARTS, "reading_turns", "writing_turns"), 0.0)
    key = {"task_id": task, "attempt": attempt, "stage": "rl", "moment": ""}
    stats = {"calls": 4.0, "turns": 3.0, "tokens": 100.0, "wall_s": parts.pop("wall_s", 2.0)}
    score = {"reward": "chores/measures", "parts": {**known, "bugs": 1.0, "excess": 2.0, **parts}}
    verdict = {"outcome": outcome, "cause": None}
    return {"event": "EpisodeEnded", "purpose": purpose, "result": {
        "key": key, "verdict": verdict, "scores": [{"reward": "x", "parts": {}}, score], "stats": stats}}  # fmt: skip


def events(folder, *found):
    (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    return folder


def test_tables_are_means_over_attempts_and_voids_are_none(tmp_path):
    run = events(
        tmp_path,
        ended("a-path-1-0", 0, "solved", looks=1.0, excess=9.0),
        ended("a-path-1-0", 0, "solved", looks=1.0),  # made again after an interruption
        ended(
            "a-path-1-0",
            1,
            "failed",
            looks=3.0,
            excess=-1.0,
            reads=2.0,
            reading_turns=1.0,
            writes=1.0,
            writing_turns=1.0,
        ),
        ended("a-path-1-0", 2, "void"),
        ended("b-path-1-0", 0, "failed"),
        ended("a-path-1-0", 0, "failed", "before/main"),
        ended("a-path-1-0", 0, "failed", "rl"),
    )
    found = reading.evaluation(run, "after")
    assert (found["a-path-1-0"]["solved"], found["a-path-1-0"]["best"]) == (0.5, 1.0)
    assert (found["a-path-1-0"]["looks"], found["a-path-1-0"]["excess"], found["a-path-1-0"]["over"]) == (2.0, 2.0, 1.0)
    assert (found["a-path-1-0"]["width"], found["b-path-1-0"]["width"]) == (1.5, None)
    assert (found["b-path-1-0"]["excess"], found["b-path-1-0"]["attempts"]) == (None, 1.0)
    assert reading.evaluation(run, "before")["a-path-1-0"]["solved"] == 0.0


def test_times_leave_the_first_episode_out(tmp_path):
    episodes = [ended("a-path-1-0", at, "solved", wall_s=9.0 if not at else float(at)) for at in range(4)]
    assert reading.alone([events(tmp_path, *episodes)]) == {"a-path-1-0": 2.0}
    again = [*episodes, {"event": "RunStarted"}, ended("a-path-1-0", 4, "solved", wall_s=9.0)]
    assert reading.alone([events(tmp_path, *again)]) == {"a-path-1-0": 2.0}, "a resumed run warms up once more"
    rounds = []
    for wall_s in (1.0, 9.0, 2.0):
        (folder := tmp_path / str(wall_s)).mkdir()
        warm, other = ended("a-path-1-0", 0, "solved"), ended("b-path-1-0", 0, "failed", wall_s=3 * wall_s)
        rounds.append(events(folder, warm, ended("a-path-1-0", 1, "solved", wall_s=wall_s), other))
    assert reading.alone(rounds) == {"a-path-1-0": 2.0, "b-path-1-0": 6.0}


def step(number, stage="rl", **metrics):
    return {"event": "StepEnded", "stage": stage, "step": number, "metrics": metrics}


def test_groups_are_told_with_the_tokens_before_their_step_and_steps_made_again_once(tmp_path):
    def scored(number, task, episodes):
        return {"event": "GroupScored", "group": f"g{number}", "task_id": task, "episodes": episodes}

    last = [
        event
        for number in (2, 3)
        for event in (
            ended(f"train-path-1-{number}", 0, "solved", "rl"),
            scored(number, f"train-path-1-{number}", [f"rl-train-path-1-{number}-0"]),
            step(number),
        )
    ]
    run = events(
        tmp_path,
        ended("train-path-2-7", 0, "solved", "rl"),
        ended("train-path-2-7", 1, "failed", "rl"),
        scored(1, "train-path-2-7", ["rl-train-path-2-7-0", "rl-train-path-2-7-1"]),
        step(1),
        *last,
        *last,
    )
    assert reading.groups(run) == [(1, 0, 2, 1, 2), (2, 200, 1, 1, 1), (3, 300, 1, 1, 1)]


def test_figures_are_of_all_steps_or_pooled_by_the_last(tmp_path):
    run = events(
        tmp_path, *(step(n, parity_median=n / 10, parity_p999=n / 10, weight_mean=float(n)) for n in (1, 2, 3))
    )
    expected = {"parity_median": 0.2, "parity_p999": 0.3, "weight_mean": 2.0}
    assert reading.figures(run) == pytest.approx(expected)


def test_a_loss_is_that_of_what_the_demonstrator_wrote(tmp_path):
    """Of four ids the last two were sampled; each is foretold by those before it."""
    model = Qwen3MoeForCausalLM(TINY)
    model.save_pretrained(tmp_path / "model")
    ids = torch.tensor([[1, 2, 3, 4]])
    logprobs = Qwen3MoeForCausalLM.from_pretrained(tmp_path / "model").eval()(ids).logits[0].log_softmax(-1)
    expected = -float((logprobs[1, 3] + logprobs[2, 4]).detach()) / 2
    branch = Branch(
        Column.of("I32", [1, 2, 3, 4]), Column.of("U8", [0, 0, 1, 1]), Column.of("F32", [0.0] * 4), ((-1, 2), (0, 2))
    )
    trace = Trace(SlotKey("t", 0), "g", (), (branch,), (), Stop.FINISHED)
    (tmp_path / "one.trace").write_bytes(encode(trace))
    event = ended("t-path-1-0", 0, "ungraded", "before/demonstrated")
    event["result"]["trace"] = {"uri": "one.trace"}
    assert reading.loss(tmp_path / "model", events(tmp_path, event)) == pytest.approx(expected, rel=1e-5)


def test_what_cannot_be_read_of_a_run_is_named(tmp_path):
    unmeasured = ended("a-path-1-0", 0, "solved")
    del unmeasured["result"]["scores"][1]
    with pytest.raises(ConfigError, match=r"not measured.*\n.*a-path-1-0.*\n.*chores/measures"):
        reading.evaluation(events(tmp_path, unmeasured), "after")
    Qwen3MoeForCausalLM(TINY).save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match="nothing was demonstrated"):
        reading.loss(tmp_path / "model", tmp_path)


def test_voids_are_counted_where_there_are_any(tmp_path):
    outcomes = ("solved", "void", "failed", "void")
    attempts = [ended("a-path-1-0", at, outcome) for at, outcome in enumerate(outcomes)]
    assert reading.voids(events(tmp_path, *attempts)) == {"voids": 2.0}
    assert reading.voids(events(tmp_path, *attempts[:1])) == {}


def test_machine_and_commit_are_those_of_the_run(tmp_path):
    summary = {"cpu": "a processor", "versions": {"python": "3.9"}, "commit": None, "wall_s": 1.26}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert (reading.machine(tmp_path), reading.commit(tmp_path)) == ("a processor, Python 3.9", "")
    assert reading.seconds(tmp_path) == 1.3
