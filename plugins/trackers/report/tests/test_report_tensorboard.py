import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from composer_core import events
from composer_core.protocols import BuildContext
from composer_core.types import EpisodeResult, Outcome, SlotKey, Verdict
from composer_plugin_report.config import TensorboardConfig
from composer_plugin_report.plugin import composer_trackers
from composer_plugin_report.tensorboard import TensorboardTracker
from composer_testing.contracts.trackers import TrackerContract


class TestTensorboardTracker(TrackerContract):
    def build(self, build):
        return TensorboardTracker(TensorboardConfig(), build)


def _written(folder, told, **config):
    tracker = TensorboardTracker(TensorboardConfig(**config), BuildContext(folder))
    for event in told:
        tracker.write(event)
    tracker.close()
    return _read(folder)


def _read(folder):
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {tag: [(row.step, row.value) for row in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def _step(step, at_s=5.0, **metrics):
    return events.StepEnded(time_s=at_s, stage="rl", step=step, steps=9, version=step, metrics=metrics)


def test_steps_and_evaluations_are_read_back_by_tensorboard(tmp_path):
    told = [_step(step, loss=step / 4, reward_mean=0.5) for step in (1, 2)]
    told += [events.Evaluated(time_s=9.0, name="after/new_bug T=1", step=2, metrics={"solve_rate": 0.75})]
    told += [events.Evaluated(name=f"step-{step}/new_bug", step=0, metrics={"solve_rate": 0.5}) for step in (10, 20)]
    assert _written(tmp_path, told) == {
        "evaluation/during/new_bug/solve_rate": [(10, 0.5), (20, 0.5)],
        "rl/loss": [(1, 0.25), (2, 0.5)],
        "rl/reward_mean": [(1, 0.5), (2, 0.5)],
        "evaluation/after/new_bug T=1/solve_rate": [(2, 0.75)],
    }


def test_times_are_those_of_the_events(tmp_path):
    _written(tmp_path, [_step(1, at_s=1234.5, loss=1.0)])
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert found.Scalars("rl/loss")[0].wall_time == 1234.5


def test_episodes_are_averaged_over_valid_ones_and_voids_counted_apart(tmp_path):
    verdicts = [
        Verdict(Outcome.SOLVED),
        Verdict(Outcome.FAILED),
        Verdict(Outcome.VOID, "host"),
        Verdict(Outcome.FAILED),
    ]
    told = [
        events.EpisodeEnded(
            result=EpisodeResult(SlotKey("t", at), "g", None, verdict, reward=float(at), stats={"wall_s": 2.0}),
            purpose="rl",
        )
        for at, verdict in enumerate(verdicts)
    ]
    found = _written(tmp_path, told, episodes_every=4)
    assert found["episodes/rl/void_share"] == [(4, 0.25)]
    assert found["episodes/rl/solve_rate"] == [(4, pytest.approx(1 / 3))]
    assert found["episodes/rl/reward_mean"] == [(4, pytest.approx((0 + 1 + 3) / 3))]
    assert found["episodes/rl/stats/wall_s"] == [(4, 2.0)]


def test_a_resumed_run_adds_to_the_same_folder(tmp_path):
    _written(tmp_path, [_step(1, loss=1.0)])
    assert sorted(_written(tmp_path, [_step(2, loss=2.0)])["rl/loss"]) == [(1, 1.0), (2, 2.0)]


def test_numbers_that_no_scalar_can_hold_are_left_out(tmp_path):
    assert _written(tmp_path, [_step(1, loss=float("nan"), big=1e300, fine=1.0)]) == {"rl/fine": [(1, 1.0)]}


def test_neither_the_hook_module_nor_the_trackers_load_torch():
    thin = "import sys, composer_plugin_report.plugin; assert not {'torch', 'numpy', 'tensorboard'} & set(sys.modules)"
    whole = (
        "import sys, composer_plugin_report.html, composer_plugin_report.tensorboard; assert 'torch' not in sys.modules"
    )
    for code in (thin, whole):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_plugin_offers_both_trackers():
    assert [spec.name for spec in composer_trackers()] == ["tensorboard", "html"]
