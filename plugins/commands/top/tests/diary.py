"""A run folder as a run writes it, a line at a time, with the clock in the test's hands."""

from __future__ import annotations

import json

from attrs import define, field

from composer_core import events
from composer_core.tracking import to_record
from composer_core.types import EpisodeResult, Fault, Outcome, SlotKey, Stop, Verdict, WeightsRef

ATTACK = "<img src=x onerror=\"document.body.dataset.owned='yes'\">"
CONTROLS = "red \x1b[31m, up \x1b[A, turned \u202e, half \ud800"


@define
class Diary:
    """Appends events at `now_s`, which only grows."""

    folder: object
    now_s: float = 1_000_000.0
    episodes: int = 0
    lines: list = field(factory=list)

    def tell(self, event, **fields):
        record = to_record(event(time_s=self.now_s, **fields))
        with (self.folder / "events.jsonl").open("a", encoding="ascii") as file:
            file.write(json.dumps(record, default=str) + "\n")

    def start(self, name="quickstart", stage="rl", steps=10):
        self.tell(events.RunStarted, name=name, run_dir=str(self.folder))
        self.tell(events.StageStarted, stage=stage, kind="rl", steps=steps)

    def begin(self, number=None):
        number = self.episodes if number is None else number
        key = SlotKey("task", number, "rl")
        self.tell(events.EpisodeStarted, episode_id=key.episode_id, task_id="task", group="rl:0")
        self.episodes = max(self.episodes, number + 1)
        return key

    def end(self, key, void=None, tokens=100.0):
        verdict = Verdict(Outcome.VOID, void) if void else Verdict(Outcome.SOLVED)
        result = EpisodeResult(key, "rl:0", None, verdict, stats={"tokens": tokens}, stop=Stop.FINISHED)
        self.tell(events.EpisodeEnded, result=result, purpose="rl")

    def cancel(self, key):
        self.tell(events.EpisodeCancelled, episode_id=key.episode_id)

    def leave(self, stage="rl"):
        self.tell(events.StageEnded, stage=stage)

    def step(self, number, **metrics):
        self.tell(events.StepEnded, stage="rl", step=number, steps=10, version=number, metrics=metrics)

    def fault(self, error="it broke", plugin="docker/docker"):
        self.tell(events.FaultRecorded, fault=Fault("sandbox", plugin, error))

    def publish(self, version):
        self.tell(events.WeightsPublished, weights=WeightsRef(version, f"weights/{version}.safetensors", "0" * 64))

    def finish(self, status="finished"):
        self.tell(events.RunEnded, status=status)

    def status(self, **more):
        """What an rl stage writes about once a second, replaced whole."""
        told = {"time_s": self.now_s, "stage": "rl", "step": 3, "steps": 10, "version": 3, "waits_for": "an episode",
                "running": [{"group": 4, "slot": 1, "task": "is_prime", "for_s": 12.0}], "ledger": LEDGER,
                "executor": EXECUTOR, **more}  # fmt: skip
        part = self.folder / ".status.json.part"
        part.write_text(json.dumps(told))
        part.replace(self.folder / "status.json")


LEDGER = {
    "admitted": 12, "capacity": 6, "slots": {"pending": 2, "running": 9, "valid": 5, "void": 1},
    "groups": {"open": 3, "ended": 1, "training": 2}, "versions": {"2": 1, "3": 5},
    "staleness": {"0": 2, "1": 6, "10": 1}, "voids": {"sandbox": 3}, "dropped": {"void": 1, "tokens": 700},
    "valid": 40, "void": 3, "lost": 2, "cancelled": 0, "late_results": 1, "refused_results": 1, "trained_groups": 9,
}  # fmt: skip
EXECUTOR = {
    "episodes": 51.0, "loop_lag_p99_ms": 2.25, "sampler/tokens": 120_000.0,
    "workers/0/running": 5, "workers/0/restarts": 0, "workers/1/running": 4, "workers/1/restarts": 1,
}  # fmt: skip
