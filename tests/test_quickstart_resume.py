"""The main job with its real parts (torch, bubblewrap, transformers), small: killed, it ends with identical bytes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer_core.tracking import read_events

ROOT = Path(__file__).resolve().parent.parent
RUN = "examples/quickstart/run.toml"
SEEDS = 8 if os.environ.get("COMPOSER_SOAK") else 1
SMALL = [
    "deterministic=true",
    "threads=1",
    "model.width=64",
    "model.expert_count=8",
    'rewards=[{use="hidden-tests/hidden-tests"},{use="fakes/every_other"}]',
    'tasks.modules=["numbers_"]',
    "stages.copy.steps=4",
    "stages.copy.batch_windows=4",
    "stages.pretrain.steps=4",
    "stages.pretrain.batch_windows=2",
    "stages.restoring.steps=3",
    "stages.restoring.batch_windows=2",
    "stages.sft.steps=6",
    "stages.sft.episodes=12",
    "stages.sft.batch_episodes=4",
    "stages.rl.steps=3",
    "stages.rl.groups_per_step=2",
    "stages.rl.group_size=4",
    "stages.rl.evaluate_every=0",
    "checkpoints.supervised_every_steps=3",
    'evaluations=[{name="main",split="new_bug_dev",tasks=4,attempts=1,when=["after"]}]',
    'samplers={demonstrator={use="drills/demonstrator"}}',
]


def command(run_dir, plugins="fakes"):
    sets = [part for text in SMALL for part in ("--set", text)]
    return ["--plugins", plugins, "train", RUN, "--run-dir", str(run_dir), *sets]


def final(run):
    commit = json.loads((run / "commit.json").read_text())
    return commit["weights"]["version"], commit["weights"]["checksum"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, composer_run):
    run = tmp_path_factory.mktemp("whole") / "run"
    process = composer_run(*command(run), timeout_s=300)
    assert process.returncode == 0, process.stderr[-2000:]
    return run


def test_the_small_job_reaches_every_stage_with_no_void(whole):
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["void_share"] == 0
    assert summary["fork_p50_ms"] > 0
    steps = [event for event in read_events(whole) if event["event"] == "StepEnded"]
    stages = {step["stage"] for step in steps}
    assert stages == {"copy", "pretrain", "restoring", "sft", "rl"}
    assert (whole / "report.html").stat().st_size > 10_000


def test_every_step_of_the_small_job_has_a_gradient(whole):
    steps = [event for event in read_events(whole) if event["event"] == "StepEnded"]
    assert not [(step["stage"], step["step"]) for step in steps if not step["metrics"]["grad_norm"] > 0]


def test_its_model_and_tokenizer_open_in_plain_transformers(whole):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(whole / "model")
    tokenizer = AutoTokenizer.from_pretrained(whole / "model")
    ids = tokenizer("def clamp(x):", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        assert torch.isfinite(model(ids).logits).all()
    published = load_file(whole / json.loads((whole / "commit.json").read_text())["weights"]["uri"])
    embedding = model.get_input_embeddings().weight
    assert any(torch.equal(embedding, tensor) for tensor in published.values() if tensor.shape == embedding.shape)


def test_killed_in_the_middle_of_rl_it_ends_with_identical_weights(whole, tmp_path, composer_run):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "composer_core.cli", *command(run)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for_version(run, version=6)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait(timeout=30)
    assert not (run / "summary.json").exists(), "it was killed before its end"
    resumed = composer_run("train", "--resume", run, timeout_s=300)
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert final(run) == final(whole)
    assert json.loads((run / "summary.json").read_text())["resumed_from"] > 0


def test_on_ray_with_a_worker_killed_it_ends_with_identical_weights_and_leaves_no_process(whole, tmp_path):
    run, mark = tmp_path / "run", f"composer-test={tmp_path}"
    placed = ["--set", "executor.use=ray/ray", "--set", "executor.sampler_replicas=2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "composer_core.cli", *command(run, "fakes,ray"), *placed],
        cwd=ROOT,
        env={**os.environ, "COMPOSER_TEST": mark},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_for_version(run, version=6)
        workers, replicas = (_processes(run, sort) for sort in ("worker/", "replica/"))
        assert not any(_has_torch(pid) for pid in workers), "rollout workers never import torch"
        assert all(_has_torch(pid) for pid in replicas)
        os.kill(workers[0], signal.SIGKILL)
        _, said = process.communicate(timeout=400)
    finally:
        process.kill()
        process.wait(timeout=30)
    assert process.returncode == 0, said[-2000:]
    assert final(run) == final(whole)
    assert not _left(mark)


def _processes(run, sort):
    """Ids of the run's processes of a sort, when its loop has told them."""
    for _ in range(1200):
        try:
            told = json.loads((run / "status.json").read_text())["executor"]
        except OSError:
            told = {}
        if pids := [int(value) for name, value in told.items() if name.startswith(sort) and name.endswith("/pid")]:
            return pids
        time.sleep(0.05)
    raise AssertionError("the run tells no processes")


def _has_torch(pid):
    return b"libtorch" in _read(f"/proc/{pid}/maps")


def _left(mark):
    """Processes with the mark in their environment that stay: those of Ray end a little after the run."""
    for _ in range(200):
        found = [pid for pid in os.listdir("/proc") if pid.isdigit() and mark.encode() in _read(f"/proc/{pid}/environ")]
        if not found:
            break
        time.sleep(0.05)
    return found


def _read(path):
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended
        return b""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_interrupted_at_random_points_by_every_signal_it_ends_with_identical_weights(
    whole, tmp_path, composer_run, seed
):
    run, dice = tmp_path / "run", random.Random(seed)
    pending = dice.sample([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], 3)
    told = command(run)
    while pending:
        number = pending.pop()
        process = subprocess.Popen(
            [sys.executable, "-m", "composer_core.cli", *told],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        _wait_for_start(process)
        time.sleep(dice.uniform(0.0, 5.0))
        ended_before = process.poll() is not None
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode in ((0,) if ended_before else (130, -int(number))), output[-2000:]
        assert "Traceback" not in output
        told = ["train", "--resume", str(run)]
    ended = composer_run(*told, timeout_s=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert final(run) == final(whole)


def _wait_for_start(process):
    """Until the run says that it has started; before that, a signal meets the interpreter and not the run."""
    for line in process.stdout:
        if " run quickstart " in line:
            return


def _wait_for_version(run, version):
    """Until commit.json holds at least this version; bounded."""
    for _ in range(3000):
        try:
            if json.loads((run / "commit.json").read_text())["weights"]["version"] >= version:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError("the run never got there")
