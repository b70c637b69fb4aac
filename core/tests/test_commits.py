"""A commit beside episodes that go on: what takes time for its size is done on threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from composer_core import commits
from composer_core.commands.train import train
from composer_core.config import structure
from composer_core.ledger import Ledger
from composer_core.plugins import Plugins, select
from composer_core.rundir import RunDir
from composer_core.tracking import read_events
from composer_testing.contracts.executors import RUN


def run_fakes(folder: Path, steps: int, **tables: Any) -> None:
    stage = {"name": "rl", "kind": "rl", "steps": steps, "groups_per_step": 1, "group_size": 2}
    run = {**RUN, "samplers": {}, "algorithm": {"use": "fakes/centered"}, "stages": [stage], **tables}
    config = structure(run, "a run of fakes")
    asyncio.run(train(config, Plugins().load(select(config.plugins)), RunDir(folder)))


def test_the_event_loop_waits_for_no_checksum_no_ledger_and_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[bool]] = {}

    def watch(owner: Any, name: str) -> None:
        made = getattr(owner, name)

        def called(*args: Any, **fields: Any) -> Any:
            seen.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())
            return made(*args, **fields)

        monkeypatch.setattr(owner, name, called)

    for owner, name in ((commits, "sha256_of"), (commits, "checksums"), (RunDir, "commit"), (Ledger, "to_json")):
        watch(owner, name)
    run_fakes(tmp_path / "run", steps=2)
    assert seen == {
        "sha256_of": {False},
        "checksums": {False},
        "commit": {False},
        "to_json": {False, True},
    }, "an empty ledger, at the start of the stage, is nothing"


def test_a_step_names_the_version_that_it_began_from_where_most_versions_have_no_commit(tmp_path: Path) -> None:
    run_fakes(tmp_path, steps=4, checkpoints={"every_steps": 3}, trackers=["core/jsonl"])
    told = [(event["step"], event["version"]) for event in read_events(tmp_path) if event["event"] == "StepEnded"]
    assert told == [(1, 0), (2, 1), (3, 2), (4, 3)]
