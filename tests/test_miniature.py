"""A one-seed miniature of the main job, with its own bar: RL on verdicts of real test runs solves more held-out bugs.

The same run file with fewer steps, five to eight minutes on two cores; the main job's gates take three seeds
(`make bench-quickstart`).
"""

import json

import pytest

RUN = "examples/quickstart/run.toml"
SMALL = [
    "threads=1",  # two that wait for each other beside another worker's tests train slower than one
    "stages.restoring.steps=1000",
    "stages.sft.episodes=1150",
    "stages.sft.steps=600",
    "stages.rl.steps=10",
    "stages.rl.evaluate_every=0",
    'evaluations=[{name="main",split="new_bug",tasks=128,attempts=1},'
    '{name="greedy",split="new_bug",tasks=64,attempts=1,temperature=0.0}]',
    'samplers={demonstrator={use="drills/demonstrator"}}',
]


@pytest.fixture(scope="module")
def summary(tmp_path_factory, composer_run):
    run = tmp_path_factory.mktemp("miniature") / "run"
    sets = [part for text in SMALL for part in ("--set", text)]
    process = composer_run("train", RUN, "--run-dir", run, *sets, timeout_s=1500)
    assert process.returncode == 0, process.stderr[-2000:]
    print(process.stderr[-3000:])
    return json.loads((run / "summary.json").read_text())


def test_reinforcement_learning_raises_the_solve_rate(summary):
    assert summary["gain"]["mean"] >= 0.1
    assert summary["gain"]["ci95_low"] > 0
    assert summary["greedy_after"] > summary["greedy_before"]
    assert summary["solve_rate_after"] >= 0.3


def test_episodes_read_edit_and_test(summary):
    assert summary["turns_mean"] >= 3
    assert summary["calls_mean"] >= 3


def test_nothing_was_void_and_sampler_and_trainer_agree(summary):
    assert summary["void_share"] == 0
    assert summary["parity_p999"] <= 1e-5
