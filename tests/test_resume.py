"""Killed anywhere, a deterministic run ends with the bytes it would have ended with."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer_core.tracking import read_events

COMPOSER_RUN = [sys.executable, "-m", "composer_core.cli"]
ROOT = Path(__file__).resolve().parent.parent
FAKES = "examples/fakes/run.toml"
SLOW = ["--set", "trainer.step_s=0.2"]
KILLS = 12 if os.environ.get("COMPOSER_SOAK") else 4


def final(run):
    commit = json.loads((run / "commit.json").read_text())
    sets = {path.name: json.loads(path.read_text())["rows"] for path in sorted((run / "evaluations").glob("*.json"))}
    return commit["weights"]["version"], commit["weights"]["checksum"], commit["checksums"], sets


@pytest.fixture(scope="module")
def uninterrupted(composer_run, tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    assert composer_run("train", FAKES, "--run-dir", run, *SLOW).returncode == 0
    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_at_random_points_it_ends_with_identical_weights(uninterrupted, tmp_path, number):
    run = tmp_path / "run"
    dice = random.Random(int(number))
    command = ["train", FAKES, "--run-dir", str(run), *SLOW, "--or-resume"]
    kills = 0
    for _ in range(40):
        process = subprocess.Popen(
            [*COMPOSER_RUN, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if kills < KILLS:
            _wait_for_start(process)
            time.sleep(dice.uniform(0.0, 0.3))
            if process.poll() is None:
                process.send_signal(number)
                kills += 1
        output, _ = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode in (130, -int(number)), output
        assert "Traceback" not in output
        if number != signal.SIGTERM:  # with which a scheduler ends what it will start again by the same words
            command = ["train", "--resume", str(run)]
    assert kills == KILLS
    assert final(run) == final(uninterrupted)


def test_attempts_of_an_interrupted_evaluation_are_not_run_again(uninterrupted, composer_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    expected = final(run)
    (run / "summary.json").unlink()
    (run / "evaluations" / "after-main.json").unlink()
    rows = (run / "evaluations" / "after.jsonl").read_text().splitlines(keepends=True)
    (run / "evaluations" / "after.jsonl").write_text("".join(rows[:20]) + rows[20][:5])  # killed while writing
    ended = sum(event.get("purpose") == "after/main" for event in read_events(run))
    resumed = composer_run("train", "--resume", run)
    assert resumed.returncode == 0, resumed.stderr
    assert sum(event.get("purpose") == "after/main" for event in read_events(run)) - ended == 24 - 20
    assert final(run) == expected


def test_an_evaluation_interrupted_after_its_commit_is_made_up_for(uninterrupted, composer_run, tmp_path):
    """Kill right after a commit: the step is in it and its evaluation is not."""
    run = tmp_path / "run"
    process = subprocess.Popen(
        [*COMPOSER_RUN, "train", FAKES, "--run-dir", str(run), *SLOW], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            commit = _commit(run)
            if commit and commit["stage"] == 2 and commit["step"] == 2:
                break
        process.kill()
    finally:
        process.wait()
    for name in ("step-2-main.json", "step-2.jsonl"):  # whatever it had managed to measure
        (run / "evaluations" / name).unlink(missing_ok=True)
    assert _commit(run)["step"] == 2
    assert composer_run("train", "--resume", run).returncode == 0
    assert final(run) == final(uninterrupted)


def test_the_summary_of_a_resumed_run_is_of_the_whole_run(composer_run, tmp_path):
    """Killed in the middle of its rl stage: everything before that was done by a process that is gone."""
    run = tmp_path / "run"
    process = subprocess.Popen(
        [*COMPOSER_RUN, "train", FAKES, "--run-dir", str(run), *SLOW], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            commit = _commit(run)
            if commit and commit["stage"] == 2 and commit["step"] == 3:
                break
            time.sleep(0.01)
        process.kill()
    finally:
        process.wait()
    assert composer_run("train", "--resume", run).returncode == 0
    told, summary = list(read_events(run)), json.loads((run / "summary.json").read_text())
    ended = [event["result"] for event in told if event["event"] == "EpisodeEnded" and event["purpose"] != "sft"]
    assert summary["episodes"] == len(ended)
    for name, stat in {"sampled_tokens": "tokens", "calls": "calls", "bad_calls": "bad_calls"}.items():
        assert summary["counts"][name] == sum(result["stats"][stat] for result in ended)
    second = next(i for i, event in enumerate(told) if event["event"] == "RunStarted" and event["resumed_from"])
    before = [event["result"] for event in told[:second] if event["event"] == "EpisodeEnded"]
    assert len(before) > len(ended) / 2
    spent_s = (told[second - 1]["time_s"] - told[0]["time_s"]) + (told[-1]["time_s"] - told[second]["time_s"])
    assert summary["wall_s"] == pytest.approx(spent_s, rel=0.2)
    assert summary["episodes_per_s"] == pytest.approx(summary["episodes"] / summary["wall_s"])
    rates = [event["metrics"] for event in told if event["event"] == "StepEnded"]
    assert summary["parity_max"] == max((m["parity_max"] for m in rates if "parity_max" in m), default=None)


def _commit(run):
    try:
        return json.loads((run / "commit.json").read_text())
    except FileNotFoundError:
        return None


def test_a_finished_run_stays_as_it_is(uninterrupted, composer_run):
    before, summary = final(uninterrupted), (uninterrupted / "summary.json").read_bytes()
    resumed = composer_run("train", "--resume", uninterrupted)
    assert resumed.returncode == 0
    assert "is finished" in resumed.stderr
    assert final(uninterrupted) == before
    assert (uninterrupted / "summary.json").read_bytes() == summary


def test_the_published_weights_are_those_of_the_manifest(uninterrupted):
    commit = json.loads((uninterrupted / "commit.json").read_text())
    data = (uninterrupted / commit["weights"]["uri"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == commit["weights"]["checksum"]


def _wait_for_start(process):
    """Until the run says that it has started; before that, a signal meets the interpreter and not the run."""
    for line in process.stdout:
        if "started in" in line or "resumed" in line:
            return


def test_a_run_is_resumed_with_the_plugins_that_were_named_before_the_command(composer_run, tmp_path):
    run, half = tmp_path / "run", tmp_path / "half"
    settings = ("--set", "plugins=[]")
    process = composer_run("--plugins", "fakes", "train", FAKES, "--run-dir", run, *settings)
    assert process.returncode == 0, process.stderr
    assert json.loads((run / "config.json").read_text())["plugins"] == ["fakes"]
    shutil.copytree(run, half)
    (half / "summary.json").unlink()
    process = composer_run("train", "--resume", half)
    assert process.returncode == 0, process.stderr
    assert (half / "summary.json").exists()
