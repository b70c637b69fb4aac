"""Episodes of several windows: a fold whose figures can be followed by hand, and a section of the page."""

from __future__ import annotations

import json

from composer_core import events
from composer_core.tracking import to_record
from composer_core.types import EpisodeResult, Outcome, Score, SlotKey, StepStats, Verdict
from composer_plugin_report.html import write_report
from composer_plugin_report.model import windows_model
from composer_plugin_report.windows import Windows, means
from composer_testing.fakes.runs import SyntheticRun


def episode(attempt, closed, kept=1.0, purpose="rl"):
    """Events of an episode that left branches of (tokens before, tokens after)."""
    key = SlotKey("t", attempt)
    yield events.EpisodeStarted(episode_id=key.episode_id, task_id="t", group="g")
    for number, (before, after) in enumerate(closed, start=1):
        yield events.ContextCompacted(
            episode_id=key.episode_id, branch=number, tokens_before=before, tokens_after=after
        )
    scores = (Score("hidden-tests/hidden-tests", "1", 1.0), Score("summary/kept", "1", kept, weight=0.0))
    yield events.EpisodeEnded(result=EpisodeResult(key, "g", None, Verdict(Outcome.SOLVED), scores), purpose=purpose)


def step(number):
    return events.StepEnded(stage="rl", step=number, steps=9, version=number, metrics=StepStats({}).metrics)


def folded(*rows):
    windows = Windows()
    for event in rows:
        windows.add(to_record(event))
    return windows


def test_figures_are_means_over_the_episodes_that_filled_a_window():
    windows = folded(*episode(0, [(100, 20), (80, 40)], 0.5), *episode(1, []), *episode(2, [(60, 30)], 1.0))
    ((purpose, episodes, several, row),) = windows.table()
    assert (purpose, episodes, several) == ("rl", 3, 2)
    assert row == {"windows filled": 1.5, "tokens before": 75.0, "tokens after": 30.0, "probe summary/kept": 0.75}


def test_a_step_counts_the_episodes_since_the_one_before():
    windows = folded(*episode(0, [(100, 20)]), *episode(1, []), step(1), *episode(2, [(60, 30)]), step(2), step(3))
    assert list(windows.steps["rl"]) == [1, 2]
    assert [row["windows filled"] for row in windows.steps["rl"].values()] == [0.5, 1.0]
    assert [row["tokens before"] for row in windows.steps["rl"].values()] == [100.0, 60.0]


def test_an_attempt_that_is_made_again_counts_once():
    lost = [event for event in episode(0, [(100, 20)]) if not isinstance(event, events.EpisodeEnded)]
    ((*_, row),) = folded(*lost, *episode(0, [(90, 20)]), *episode(0, [(90, 20)])).table()
    assert (row["windows filled"], row["tokens before"]) == (1.0, 90.0)


def test_nothing_is_kept_of_a_cancelled_attempt():
    begun = [event for event in episode(0, [(100, 20)]) if not isinstance(event, events.EpisodeEnded)]
    assert folded(*begun, events.EpisodeCancelled(episode_id=SlotKey("t", 0).episode_id)) == Windows()


def test_a_run_of_single_windows_has_no_section():
    assert means([]) == means([{}]) == {}
    assert windows_model(folded(*episode(0, []), step(1))) is None


def test_the_page_has_a_table_and_curves(tmp_path):
    SyntheticRun(rl_steps=2).write(tmp_path)
    with (tmp_path / "events.jsonl").open("a") as lines:
        for event in (*episode(900, [(100, 20)]), step(1)):
            lines.write(json.dumps(to_record(event)) + "\n")
    page = write_report(tmp_path).read_text()
    assert "Windows filled per episode" in page and "probe summary/kept" in page
