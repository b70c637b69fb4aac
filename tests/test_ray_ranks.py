"""Two trainer ranks as processes of a Ray run, joined by gloo, train as one does in the run's own process."""

import json

import pytest

from composer_core.tracking import read_events

RUN = "examples/quickstart/run.toml"
SMALL = [
    "threads=1",
    'tasks.modules=["numbers_"]',
    'stages=[{name="pretrain",kind="pretrain",steps=3,batch_windows=8,window_tokens=128,learning_rate=1e-3}]',
    "evaluations=[]",
    "samplers={}",
    "checkpoints.supervised_every_steps=1",
]
RANKS = ["executor.use=ray/ray", "executor.workers=1", "executor.trainer_ranks=2"]


def losses(composer_run, run, *sets):
    words = [word for text in (*SMALL, *sets) for word in ("--set", text)]
    process = composer_run("--plugins", "ray", "train", RUN, "--run-dir", run, *words, timeout_s=400)
    assert process.returncode == 0, process.stderr[-2000:]
    return [event["metrics"]["loss"] for event in read_events(run) if event["event"] == "StepEnded"]


def test_two_ranks_give_the_losses_of_one_and_one_set_of_weights(composer_run, tmp_path):
    one, two = (losses(composer_run, tmp_path / name, *sets) for name, sets in (("one", []), ("two", RANKS)))
    assert two == pytest.approx(one, rel=1e-5)
    assert len(two) == 3
    commit = json.loads((tmp_path / "two/commit.json").read_text())
    assert (tmp_path / "two" / commit["weights"]["uri"]).stat().st_size > 1 << 20
