"""The reward of an exported episode: what the run gave it, its group's share included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from composer_core.cli import group
from composer_core.tracking import read_events

PLUGIN = """
from composer_core import RewardSpec, hookimpl

COMPOSER_API = 1


def later(group):
    return [float(trace.key.attempt) for trace in group]


@hookimpl
def composer_rewards():
    return [RewardSpec(name="later", function=later, scope="group", range=(0.0, 3.0), weight=0.25)]
"""
RUN = """
name = "groups"
plugins = ["fakes", "of-a-group"]
tasks.use = "fakes/sums"
sandbox.use = "fakes/memory"
tools.use = ["fakes/read", "fakes/write", "fakes/done"]
model.use = "fakes/bytes"
renderer.use = "fakes/lines"
sampler = { use = "fakes/learner", start = 0.5 }
trainer.use = "fakes/simulated"
algorithm.use = "fakes/centered"
rewards = [{ use = "fakes/checked" }, { use = "of-a-group/later" }]
trackers = ["core/jsonl"]

[[stages]]
kind = "rl"
steps = 1
groups_per_step = 2
group_size = 4
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with one plugin, whose reward looks at a whole group."""
    about = folder / "of_a_group-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-group\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[composer.plugins]\nof-a-group = of_a_group\n")
    (folder / "of_a_group.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(folder)


def invoke(*words: Any) -> None:
    found = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    assert not found.exit_code, found.output


def test_the_exported_reward_is_the_episodes_own_with_what_its_group_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    install(tmp_path / "site", monkeypatch)
    file, run = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(RUN)
    invoke("train", file, "--run-dir", run)
    scored = [event for event in read_events(run) if event["event"] == "GroupScored"]
    told = {id: value for event in scored for id, value in zip(event["episodes"], event["rewards"], strict=True)}
    assert len(told) == 8 and any(value % 1 for value in told.values()), "groups have given something"
    for name in ("openai", "atif"):
        invoke("export", run, tmp_path / "out", "--format", name)
        rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        assert {row["trajectory_id"]: row.get("extra", row)["reward"] for row in rows} == told
