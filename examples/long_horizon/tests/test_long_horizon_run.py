"""One arm in miniature, from nothing, through the command line: books are read once, summed up, imitated and graded."""

import os
import subprocess
import sys

import pytest
from comparison.arms import HERE
from comparison.figures import read

from composer_core.config import load
from composer_core.tracking import read_events

SMALL = [
    'model={use="hf/tiny-moe",vocab_size=704,width=32,expert_count=2,expert_width=32}',
    "tasks.pages=5",
    "tasks.train=8",
    "samplers.reader.kept=1.0",
    "stages.sft.episodes=8",
    "stages.sft.steps=2",
    'stages.sft.keep="solved"',
    "stages.rl.steps=1",
    "stages.rl.groups_per_step=1",
    "stages.rl.group_size=2",
    "evaluations.main.tasks=2",
    "evaluations.main.attempts=1",
    'trackers=["core/jsonl"]',
    "threads=1",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run; the plugin is installed for it alone, so the environment of the tests is left as it is."""
    site, made = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("long_horizon") / "run"
    install = ["-m", "pip", "-q", "install", "--no-deps", "--no-build-isolation", "--no-index", "--target", site, HERE]
    sets = [word for text in SMALL for word in ("--set", text)]
    train = ["-m", "composer_core.cli", "train", HERE / "run.toml", "--run-dir", made, *sets]
    for words in (install, train):
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return made


def test_demonstrations_outlive_their_window_and_are_solved(folder):
    ended = [event["result"] for event in read_events(folder) if event["event"] == "EpisodeEnded"]
    shown = [result for result in ended if result["key"]["stage"] == "sft"]
    assert len(shown) == 8
    for result in shown:
        probe = next(score for score in result["scores"] if score["reward"] == "summary/kept")
        assert result["verdict"]["outcome"] == "solved"
        assert (probe["value"], probe["parts"]["segments"]) == (1.0, 5.0)
        assert probe["parts"]["tokens_before"] <= load(HERE / "run.toml").limits["context_tokens"]


def test_its_evaluations_are_read_as_figures(folder):
    for moment in ("before", "after"):
        found = read(folder, moment)
        assert [len(row) for row in found.rows.values()] == [1, 1]
        assert found.wall_s > 0
