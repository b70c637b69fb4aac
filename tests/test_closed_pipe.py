"""`composer-run train ... | head`: a run goes on when nobody reads its progress any more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from composer_core.tracking import read_events

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "composer_core.cli", "train", "examples/fakes/run.toml", "--run-dir"]


def shown_by_head(process):
    """Read three lines, then close the pipe."""
    with process.stderr or process.stdout as pipe:
        return [pipe.readline() for _ in range(3)]


@pytest.mark.parametrize("stdout", ["apart", "the same pipe"])
def test_a_run_whose_reader_goes_away_ends_as_it_would_have(tmp_path, stdout):
    run, results = tmp_path / "run", (tmp_path / "results").open("w")
    apart = stdout == "apart"
    pipes = {"stdout": results, "stderr": subprocess.PIPE} if apart else {"stdout": -1, "stderr": subprocess.STDOUT}
    with results, subprocess.Popen([*COMMAND, str(run)], cwd=ROOT, text=True, **pipes) as process:
        try:
            shown = shown_by_head(process)
            assert process.wait(timeout=100) == 0
        finally:
            process.kill()
    assert "run fakes started" in shown[0]
    assert json.loads((run / "summary.json").read_text())["solve_rate_after"] > 0
    told = [event["event"] for event in read_events(run)]
    assert told[-1] == "RunEnded"
    assert "FaultRecorded" not in told


@pytest.mark.parametrize("gone", ["stdout", "stderr"])
def test_a_stream_that_was_closed_from_the_start_leaves_no_traceback(tmp_path, gone):
    """The interpreter flushes its streams once more at exit."""
    run, pipes = tmp_path / "run", {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, str(run)], cwd=ROOT, text=True, **pipes) as process:
        try:
            getattr(process, gone).close()
            other = process.stdout if gone == "stderr" else process.stderr
            assert "Traceback" not in other.read()
            assert process.wait(timeout=100) == 0
        finally:
            process.kill()
    assert (run / "summary.json").exists()
