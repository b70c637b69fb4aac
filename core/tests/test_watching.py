"""Who looks at a stage: status.json tells where it stands; a standstill is written down, named, and ended if asked."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from composer_core.assembly import Assembly
from composer_core.config import RlStage, structure, to_data
from composer_core.errors import TrainerError
from composer_core.events import Event, FaultRecorded
from composer_core.plugins import Plugins, select
from composer_core.rollouts import RlLoop, RlParts, ledger_for
from composer_core.rundir import RunDir
from composer_core.types import StepStats, WeightsRef
from composer_testing.contracts.executors import RUN

STAGE = RlStage(name="rl", steps=2, groups_per_step=2, group_size=2, stall_s=0.3, on_stall="stop")


class Stage:
    """An rl stage of public fakes in the built-in executor; `generate` stands in for the sampler's, given the real."""

    def __init__(self, folder: Path, stage: RlStage, generate: Callable[..., Any] | None = None) -> None:
        config = structure({**RUN, "algorithm": {"use": "fakes/centered"}}, "a run of fakes")
        plugins = Plugins().load(select(config.plugins))
        self.folder = RunDir(folder / "run")
        self.folder.create(to_data(config), plugins.manifest())
        self.assembly = Assembly(config, plugins.registry, self.folder.path)
        self.stage = stage
        self.events: list[Event] = []
        self.states: list[dict[str, Any]] = []
        sampler = self.assembly.get("samplers")["policy"]
        if generate:
            real = sampler.generate
            sampler._made.generate = lambda *args: generate(real, *args)

    def write(self, name: str, data: bytes) -> None:
        self.folder.write(name, data, durable=False)
        if name == "status.json":
            self.states.append(json.loads(data))

    def run(self, **changes: Any) -> None:
        asyncio.run(self._run(**changes))

    async def _run(self, **changes: Any) -> None:
        get = self.assembly.get
        executor, tasks = get("executors"), get("tasks").tasks("train")
        ledger = ledger_for(self.stage, tasks, 1, False)

        async def publish(stats: StepStats | None) -> None:
            uri = f"weights/{ledger.version}.safetensors"
            (self.folder.path / uri).write_bytes(b"any")
            await executor.publish(WeightsRef(ledger.version, uri, ""))

        await executor.start()
        await publish(None)
        await get("trainers").begin("rl", None)
        parts = RlParts(
            stage=self.stage,
            algorithm_id="fakes/centered",
            tasks=tasks,
            executor=executor,
            trainer=get("trainers"),
            store=get("stores"),
            group_rewards=(),
            run_seed=1,
            limits={},
            emit=self.events.append,
            journal=lambda entries: None,
            write=self.write,
        )
        try:
            await asyncio.wait_for(RlLoop(attrs.evolve(parts, **changes), ledger, publish).run(), 30)
        finally:
            await self.assembly.close()

    def told(self) -> list[str]:
        """What the watchdog has told."""
        faults = [event.fault for event in self.events if isinstance(event, FaultRecorded)]
        return [fault.error for fault in faults if fault.where == "watchdog"]


async def never_answers(real: Callable[..., Any], *args: Any) -> Any:
    await asyncio.Event().wait()


def test_a_sampler_that_never_answers_stops_the_run_which_names_what_it_waited_for(tmp_path: Path) -> None:
    run = Stage(tmp_path, STAGE, never_answers)
    with pytest.raises(TrainerError, match="stands still") as stopped:
        run.run()
    assert "4 running episodes, the oldest group 0 slot 0 (task " in str(stopped.value)
    assert run.told() and "stalled-1.txt" in run.told()[0]
    report = (run.folder.path / "stalled-1.txt").read_text()
    assert "4 x task" in report, "tasks that wait in the same place are counted"
    for place in ("in never_answers", "in RunningEpisode._generate", "in InProcessExecutor.submit"):
        assert place in report
    assert "thread MainThread" in report
    assert '"slots": {\n   "pending": 0,\n   "running": 4' in report, "the ledger's table"
    for thread in threading.enumerate():
        if thread.name == "composer-watchdog":
            thread.join(10)
            assert not thread.is_alive()


def test_a_standstill_may_be_told_alone_and_the_run_goes_on(tmp_path: Path) -> None:
    go = threading.Event()

    async def answers_late(real: Callable[..., Any], *args: Any) -> Any:
        while not go.is_set():
            await asyncio.sleep(0.01)
        return await real(*args)

    run = Stage(tmp_path, attrs.evolve(STAGE, on_stall="report"), answers_late)
    write = run.write

    def write_and_go(name: str, data: bytes) -> None:
        write(name, data)
        if name.startswith("stalled"):
            go.set()

    run.run(write=write_and_go)
    assert len(run.told()) == 1, "one standstill is told once"
    assert run.states[-1]["step"] == STAGE.steps


def test_a_blocked_event_loop_is_seen_from_outside_of_it(tmp_path: Path) -> None:
    go = threading.Event()

    async def blocks(real: Callable[..., Any], *args: Any) -> Any:
        go.wait(20)
        return await real(*args)

    run = Stage(tmp_path, attrs.evolve(STAGE, on_stall="report"), blocks)

    def emit(event: Event) -> None:
        run.events.append(event)
        if run.told():
            go.set()

    run.run(emit=emit)
    report = (run.folder.path / "stalled-1.txt").read_text()
    assert "go.wait(20)" in report
    assert run.states[-1]["step"] == STAGE.steps


def test_a_stage_that_goes_on_is_left_alone_however_long_it_takes(tmp_path: Path) -> None:
    async def slow(real: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0.05)
        return await real(*args)

    run = Stage(tmp_path, attrs.evolve(STAGE, stall_s=1.0, steps=16), slow)
    run.run()
    assert run.states[-1]["elapsed_s"] > 1.5
    assert run.told() == []


def test_zero_is_no_watchdog(tmp_path: Path) -> None:
    threads: set[str] = set()
    run = Stage(tmp_path, attrs.evolve(STAGE, stall_s=0.0))
    run.run(emit=lambda event: threads.update(thread.name for thread in threading.enumerate()))
    assert "MainThread" in threads
    assert "composer-watchdog" not in threads


def test_the_status_tells_where_the_stage_stands_and_is_whole_at_any_moment(tmp_path: Path) -> None:
    run = Stage(tmp_path, attrs.evolve(STAGE, stall_s=60))
    run.run()
    first, last = run.states[0], run.states[-1]
    assert (first["stage"], first["step"], first["steps"]) == ("rl", 0, 2)
    assert (last["step"], last["version"], last["episodes"], last["running"]) == (2, 2, 8, [])
    assert last["ledger"]["trained_groups"] == 4
    assert last["ledger"]["staleness"] == {"0": 4}
    assert last["tokens"] == last["executor"]["sampler/tokens"] > 0
    assert last["waits_for"] == "nothing: the stage has ended"
    assert json.loads((run.folder.path / "status.json").read_text()) == last
    assert abs(last["time_s"] - time.time()) < 600


def test_a_status_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    run = Stage(tmp_path, STAGE)

    run.run(write=RunDir(tmp_path / "gone").write)
    assert run.told() == []
