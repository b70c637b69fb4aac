"""One process trains in a run folder; whoever only reads it needs no lock, and a killed process holds none."""

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from composer_core.errors import ConfigError
from composer_core.rundir import RunDir

ROOT = Path(__file__).resolve().parent.parent
FAKES = "examples/fakes/run.toml"
SLOW = ["--set", "trainer.step_s=1.0"]


@contextmanager
def training(run):
    """A process in the middle of a run, killed at the end."""
    command = [sys.executable, "-m", "composer_core.cli", "train", FAKES, "--run-dir", str(run), *SLOW]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            until_s = time.monotonic() + 60
            while not (run / "commit.json").exists():
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < until_s
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("command", [["--resume"], [FAKES, "--run-dir"], [FAKES, *SLOW, "--or-resume", "--run-dir"]])
def test_a_second_process_is_refused_and_told_who_trains(composer_run, tmp_path, command):
    run = tmp_path / "run"
    with training(run) as process:
        second = composer_run("train", *command, run)
        assert second.returncode == 2, second.stderr
        assert "Traceback" not in second.stderr
        if "--run-dir" not in command or "--or-resume" in command:
            for words in ("another process trains", str(run / "lock"), f"process {process.pid}\n", "fix:"):
                assert words in second.stderr
        assert process.poll() is None
        assert (run / "lock").read_text() == f"{process.pid}\n"


def test_a_run_is_shown_and_evaluated_while_it_trains(composer_run, tmp_path):
    run = tmp_path / "run"
    with training(run) as process:
        assert composer_run("show", run).returncode == 0
        evaluated = composer_run("eval", FAKES, "--run", run)
        assert evaluated.returncode == 0, evaluated.stderr
        assert process.poll() is None


def test_of_a_killed_process_the_kernel_lets_go(composer_run, tmp_path):
    run = tmp_path / "run"
    with training(run) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert (run / "lock").exists()
        (run / "config.json").write_text((run / "config.json").read_text().replace('"step_s": 1.0', '"step_s": 0.0'))
        resumed = composer_run("train", "--resume", run)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads((run / "summary.json").read_text())["resumed_from"]


def test_a_folder_made_for_a_run_that_was_refused_is_gone_again(tmp_path):
    folder = RunDir(tmp_path / "runs" / "run")
    with pytest.raises(ZeroDivisionError), folder.lock():
        assert (folder.path / "lock").exists()
        raise ZeroDivisionError
    assert not folder.path.exists()
    folder.path.mkdir()
    with folder.lock(), pytest.raises(ConfigError, match="another process trains"), folder.lock():
        pass
    assert (folder.path / "lock").exists()
