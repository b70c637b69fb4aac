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
from composer_testing.contracts.executors import RUN


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
    stage = {"name": "rl", "kind": "rl", "steps": 2, "groups_per_step": 1, "group_size": 2}
    run = {**RUN, "samplers": {}, "algorithm": {"use": "fakes/centered"}, "stages": [stage]}
    config = structure(run, "a run of fakes")
    asyncio.run(train(config, Plugins().load(select(config.plugins)), RunDir(tmp_path / "run")))
    assert seen == {
        "sha256_of": {False},
        "checksums": {False},
        "commit": {False},
        "to_json": {False, True},
    }, "an empty ledger, at the start of the stage, is nothing"
