"""What every tracker must do (`protocols.Tracker`). Subclass `TrackerContract` and override `build`."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve, frozen

from composer_core import events
from composer_core.events import Event
from composer_core.protocols import BuildContext, Tracker
from composer_core.types import EpisodeResult, Fault, Outcome, Score, SlotKey, Stop, TraceRef, Verdict, WeightsRef

HOSTILE = "</script><img src=x onerror=alert(1)> [bold]\x1b[31m \ud800 \0 日本"


def sample_events(text: str = "plain", value: float = 0.5) -> list[Event]:
    """One of every kind of event in the order of a run; `text` and `value` stand wherever they may."""
    result = EpisodeResult(
        key=SlotKey("task", 0),
        group="g",
        trace=TraceRef("traces/rl-task-0.trace", "0" * 64),
        verdict=Verdict(Outcome.SOLVED),
        scores=(Score("a/b", "1", value, {"part": value}, text),),
        reward=value,
        oldest_version=0,
        stats={"wall_s": value},
        stop=Stop.FINISHED,
        faults=(Fault("tool", "a/b", text),),
    )
    metrics = {"reward_mean": value, "solve_rate": value, "tool/grep": value, "loss": value}
    made: list[Event] = [
        events.RunStarted(name=text, run_dir="runs/x", plugins=("a", "b")),
        events.StageStarted(stage="rl", kind="rl", steps=2),
        events.EpisodeStarted(episode_id="rl-task-0", task_id=text, group="g"),
        events.TurnEnded(episode_id="rl-task-0", turn=0, sampled_tokens=3, calls=("grep",)),
        events.ContextCompacted(episode_id="rl-task-0", branch=1, tokens_before=9, tokens_after=3),
        events.EpisodeEnded(result=result),
        events.GroupScored(group="g", task_id=text, rewards=(value, 0.0)),
        events.StepEnded(stage="rl", step=1, steps=2, version=1, metrics=metrics),
        events.EpisodeCancelled(episode_id="rl-task-1"),
        events.WeightsPublished(weights=WeightsRef(1, "weights/1.safetensors", "0" * 64)),
        events.CheckpointSaved(path="checkpoints/1", stage="rl", step=1, version=1),
        events.Evaluated(name=f"after/{text}", step=1, metrics={**metrics, "ci95_low": value, "ci95_high": value}),
        events.FaultRecorded(fault=Fault("sandbox", "a/b", text), episode_id="rl-task-0"),
        events.PluginFailed(plugin="a", dist="a", version="1", error=text),
        events.StageEnded(stage="rl", summary={"note": text}),
        events.RunEnded(status="finished", summary={"solve_rate_after": value, "note": text}),
    ]
    return [evolve(event, time_s=1_000_000.0 + index) for index, event in enumerate(made)]


@frozen(kw_only=True)
class NewKindOfEvent(Event):
    """Stands for an event that a later core may add."""

    detail: str = ""


class TrackerContract:
    """Name your subclass `Test...`; each test gets a fresh tracker on an empty run folder."""

    def build(self, build: BuildContext) -> Tracker:
        raise NotImplementedError("return a tracker built from its config and this context")

    @pytest.fixture
    def context(self, tmp_path: Path) -> BuildContext:
        return BuildContext(tmp_path / "run")

    def test_takes_every_kind_of_event(self, context: BuildContext) -> None:
        tracker = self.build(context)
        for event in sample_events():
            tracker.write(event)
        tracker.close()

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300, 0.0])
    def test_takes_hostile_text_and_odd_numbers(self, context: BuildContext, value: float) -> None:
        tracker = self.build(context)
        for event in sample_events(HOSTILE, value):
            tracker.write(event)
        tracker.close()

    def test_takes_a_kind_of_event_it_does_not_know(self, context: BuildContext) -> None:
        tracker = self.build(context)
        tracker.write(NewKindOfEvent(time_s=1.0, detail="later"))
        tracker.close()

    def test_takes_a_step_of_a_stage_that_was_never_started(self, context: BuildContext) -> None:
        tracker = self.build(context)
        tracker.write(events.StepEnded(stage="odd", step=7, steps=None, version=0, metrics={}))
        tracker.close()

    def test_close_is_safe_twice_and_without_a_run(self, context: BuildContext) -> None:
        tracker = self.build(context)
        tracker.close()
        tracker.close()

    def test_carries_on_in_a_folder_that_has_been_written_before(self, context: BuildContext) -> None:
        for _ in range(2):
            tracker = self.build(context)
            for event in sample_events():
                tracker.write(event)
            tracker.close()

    def test_writes_inside_the_run_folder_only(self, context: BuildContext) -> None:
        tracker = self.build(context)
        for event in sample_events("../../elsewhere"):
            tracker.write(event)
        tracker.close()
        beside = {path.name for path in context.run_dir.parent.iterdir()}
        assert beside <= {context.run_dir.name}
