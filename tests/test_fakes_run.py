"""The whole loop on fakes: stages, evaluations, events, traces and summary, through the command line alone."""

import json

import pytest

from composer_core.traces import decode
from composer_core.tracking import read_events
from composer_core.types import Outcome

FAKES = "examples/fakes/run.toml"


@pytest.fixture(scope="module")
def finished(composer_run, tmp_path_factory):
    run = tmp_path_factory.mktemp("fakes") / "run"
    process = composer_run("train", FAKES, "--run-dir", run)
    assert process.returncode == 0, process.stderr
    return run


def test_training_makes_the_fake_policy_better(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["solve_rate_after"] > summary["solve_rate_before"] + 0.2
    assert summary["gain"]["ci95_low"] > 0
    assert summary["void_share"] == 0


def test_events_tell_the_run_in_order(finished):
    names = [event["event"] for event in read_events(finished)]
    assert names[0] == "RunStarted"
    assert names[-1] == "RunEnded"
    assert names.count("StepEnded") == 4 + 4 + 5
    assert names.count("GroupScored") == 5 * 3


def test_every_weights_version_is_committed_before_it_is_published(finished):
    committed, published = {0}, []  # version 0 are the weights before any step
    for event in read_events(finished):
        if event["event"] == "CheckpointSaved":
            committed.add(event["version"])
        if event["event"] == "WeightsPublished":
            published.append(event["weights"]["version"])
            assert published[-1] in committed
    assert len(published) > 5
    assert published == sorted(published)


def test_best_names_a_checkpoint_of_the_evaluated_step_when_checkpoints_are_sparse(composer_run, tmp_path):
    run = tmp_path / "run"
    process = composer_run("train", FAKES, "--run-dir", run, "--set", "checkpoints.every_steps=3")
    assert process.returncode == 0, process.stderr
    best = json.loads((run / "commit.json").read_text())["best"]
    assert best["step"] in (2, 4)
    assert (run / "checkpoints" / str(best["checkpoint"])).is_dir()
    evaluated = json.loads((run / "evaluations" / f"step-{best['step']}-main.json").read_text())
    assert evaluated["metrics"]["solve_rate"] == best["value"]


def test_traces_hold_exactly_the_sampled_tokens_once(finished):
    traces = [decode(path.read_bytes()) for path in sorted((finished / "traces").iterdir())]
    assert len(traces) == 12 + 24 * 4 + 5 * 12
    for trace in traces:
        sampled = sum(sum(branch.sampled.values()) for branch in trace.branches)
        assert sampled == trace.sampled_tokens() == sum(turn.stop - turn.start for turn in trace.turns)
        graded = (Outcome.SOLVED, Outcome.FAILED)
        assert trace.verdict.outcome in ((Outcome.UNGRADED,) if trace.key.stage == "sft" else graded)


def test_show_prints_the_run_and_one_trace(finished, composer_run):
    assert "finished" in composer_run("show", finished).stdout
    some = sorted((finished / "traces").iterdir())[0].stem
    page = composer_run("show", finished, "--trace", some).stdout
    assert "answer.txt" in page


def test_voids_are_masked_refilled_and_counted(composer_run, tmp_path):
    run = tmp_path / "run"
    process = composer_run("train", FAKES, "--run-dir", run, "--set", "sampler.void_share=0.2")
    assert process.returncode == 0, process.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert 0.02 < summary["void_share"] < 0.4
    deciles = summary["void_by_length"]
    assert len(deciles) == 10
    assert sum(one["episodes"] for one in deciles) == summary["episodes"]
    voids = sum(one["episodes"] * one["void_share"] for one in deciles)
    assert voids == pytest.approx(summary["void_share"] * summary["episodes"])
    assert deciles == sorted(deciles, key=lambda one: one["tokens_most"])
    faults = [event for event in read_events(run) if event["event"] == "FaultRecorded"]
    assert faults
    assert all("fakes/learner" in fault["fault"]["plugin"] for fault in faults)


def test_an_evaluation_of_voids_alone_is_no_measurement_and_is_made_up_for_on_resume(composer_run, tmp_path):
    run = tmp_path / "run"
    broken = ("--set", "sampler.void_share=1.0", "--set", "sampler.voids_each=1000000")
    process = composer_run("train", FAKES, "--run-dir", run, *broken)
    assert process.returncode == 1, process.stderr
    assert "before/main: nothing measured, episodes 0, 24 void" in process.stderr
    faults = [event for event in read_events(run) if event["event"] == "FaultRecorded"]
    assert len(faults) >= 24 * 3
    assert not (run / "evaluations/before-main.json").exists()
    assert not (run / "evaluations/before.jsonl").exists()
    config = json.loads((run / "config.json").read_text())
    config["sampler"]["void_share"] = 0.0
    (run / "config.json").write_text(json.dumps(config))
    resumed = composer_run("train", "--resume", run)
    assert resumed.returncode == 0, resumed.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert summary["solve_rate_before"] > 0 and summary["gain"]


@pytest.mark.parametrize("sandbox", ["fakes/memory", "local/process"])
def test_validate_proves_gold_noop_and_exploits(composer_run, sandbox):
    trusted = ["--set", "sandbox.trusted=true"] if sandbox == "local/process" else []
    process = composer_run("--plugins", "local", "validate", FAKES, "--set", f"sandbox.use='{sandbox}'", *trusted)
    assert process.returncode == 0, process.stderr
    assert "96 gradings" in process.stdout
    counts = {line.split()[0]: line.split()[1:] for line in process.stdout.splitlines()}
    assert counts["split"] == ["gold", "no-op", "exploits"]
    assert counts["train"] == counts["held_out"] == ["12", "12", "24"]


def test_eval_repeats_the_evaluation_of_a_finished_run(finished, composer_run):
    process = composer_run("eval", FAKES, "--run", finished, "--only", "main")
    assert process.returncode == 0, process.stderr
    summary = json.loads((finished / "summary.json").read_text())
    assert json.loads(process.stdout)["main"]["solve_rate"] == pytest.approx(summary["solve_rate_after"])


def test_an_attempt_that_two_evaluations_ask_for_is_run_once(composer_run, tmp_path):
    sets = (
        "[{name='main', split='held_out', tasks=12, attempts=2}, {name='deep', split='held_out', tasks=6, attempts=4}]"
    )
    run = tmp_path / "run"
    process = composer_run("train", FAKES, "--run-dir", run, "--set", f"evaluations={sets}")
    assert process.returncode == 0, process.stderr
    after = [event for event in read_events(run) if event.get("purpose", "").startswith("after/")]
    assert len({event["result"]["key"]["task_id"] for event in after}) == 12
    assert len(after) == 12 * 2 + 6 * 2
    main, deep = (json.loads((run / f"evaluations/after-{name}.json").read_text())["rows"] for name in ("main", "deep"))
    assert len(deep) == 6
    assert all(main[task] == row[:2] and len(row) == 4 for task, row in deep.items())


def test_rollouts_only_trains_nothing(composer_run, tmp_path):
    run = tmp_path / "run"
    only_rl = ["--set", "evaluations=[]", "--set", "stages.rl.evaluate_every=0"]
    process = composer_run("train", FAKES, "--run-dir", run, "--rollouts-only", *only_rl)
    assert process.returncode == 0, process.stderr
    stages = [event["stage"] for event in read_events(run) if event["event"] == "StepEnded"]
    assert "rl" not in stages
    traces = [decode(path.read_bytes()) for path in (run / "traces").glob("rl-*")]
    assert sorted(trace.group for trace in traces) == ["rl:0"] * 4 + ["rl:1"] * 4 + ["rl:2"] * 4
    for again in (["--resume", run], [FAKES, "--run-dir", run, *only_rl, "--or-resume"]):
        carried_on = composer_run("train", *again)
        assert carried_on.returncode == 2
        assert "its rl stages were not trained" in carried_on.stderr
