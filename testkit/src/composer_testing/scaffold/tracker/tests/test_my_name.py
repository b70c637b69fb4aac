"""The tracker keeps its kind's contract, and its file reads back."""

import csv

from composer_core import BuildContext, NoConfig
from composer_core.events import StepEnded
from composer_plugin_my_name.tracker import COLUMNS, MyNameTracker
from composer_testing.contracts.hook_modules import HookModuleContract
from composer_testing.contracts.trackers import TrackerContract


class TestHookModule(HookModuleContract):
    module = "composer_plugin_my_name.plugin"


class TestMyName(TrackerContract):
    def build(self, build):
        return MyNameTracker(NoConfig(), build)


def written(run_dir, *steps: StepEnded) -> list[dict[str, str]]:
    """The rows of the file after one more tracker wrote these steps."""
    tracker = MyNameTracker(NoConfig(), BuildContext(run_dir))
    for step in steps:
        tracker.write(step)
    tracker.close()
    with (run_dir / "my-name/steps.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def step(stage: str, number: int, **metrics: float) -> StepEnded:
    return StepEnded(time_s=1.5, stage=stage, step=number, steps=9, version=number, metrics=metrics)


def test_every_metric_of_every_step_is_a_row_whatever_the_stage_reports(tmp_path):
    rows = written(tmp_path, step("sft", 1, loss=0.5), step("rl", 1, loss=0.25, reward_mean=1.0))
    assert rows[0] == dict(zip(COLUMNS, ["1.5", "sft", "1", "1", "loss", "0.5"], strict=True))
    assert [(row["stage"], row["metric"], float(row["value"])) for row in rows[1:]] == [
        ("rl", "loss", 0.25),
        ("rl", "reward_mean", 1.0),
    ]


def test_a_resumed_run_appends_under_the_same_header(tmp_path):
    written(tmp_path, step("rl", 1, loss=0.5))
    assert [row["step"] for row in written(tmp_path, step("rl", 2, loss=0.25))] == ["1", "2"]
