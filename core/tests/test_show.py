import json
import re

import pytest
from click.testing import CliRunner

from composer_core.commands.show import command, show, sparkline
from composer_core.errors import ConfigError
from composer_core.events import Evaluated, GroupScored
from composer_core.history import Evaluation, History, changed
from composer_core.ledger import Ledger, LedgerConfig
from composer_core.traces import decode, readable
from composer_core.tracking import events_path, read_events, to_record
from composer_core.types import Score
from composer_testing.fakes.runs import SyntheticRun


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return SyntheticRun(rl_steps=8).write(tmp_path_factory.mktemp("show") / "quickstart")


def test_the_page_names_status_stages_curves_evaluations_faults_and_examples(run_dir):
    page = show(run_dir)
    for text in ("quickstart: finished, 7:40", "Curves of pretrain", "reward_mean", "after/new_bug T=1", "0.81"):
        assert text in page
    assert any(block in page for block in "▁█")
    tables = page.partition("Look at one:")[0]
    assert max(len(line) for line in tables.splitlines()) <= 100


def test_the_page_tells_first_whether_it_learned_and_what_the_policy_does_differently(run_dir, tmp_path):
    for mean, low, high, told in (
        (0.4, 0.3, 0.5, "it learned"),
        (-0.4, -0.5, -0.3, "it got worse"),
        (0.0, -0.1, 0.1, "no difference is shown"),
    ):
        copy = SyntheticRun(rl_steps=2).write(tmp_path / told.replace(" ", "-"))
        summary = json.loads((copy / "summary.json").read_text())
        gain = {"mean": mean, "ci95_low": low, "ci95_high": high}
        (copy / "summary.json").write_text(json.dumps({**summary, "gain": gain}))
        page = show(copy)
        assert told in "\n".join(page.splitlines()[:5])
        assert "what the policy does differently in new_bug T=1" in page
        assert re.search(r"solve_rate +0.41 +0.81 +\+0.4", page)


def test_the_page_names_a_trace_of_each_outcome_and_the_command_that_shows_it(run_dir):
    examples = re.findall(r"composer-run show \S+ --trace (\S+) +\((\w+)\)", show(run_dir))
    assert {outcome for _, outcome in examples} >= {"solved", "failed"}
    for trace_id, outcome in examples:
        assert f"verdict: {outcome}" in show(run_dir, trace_id)


def test_what_makes_the_page_long_is_left_to_a_switch(run_dir):
    brief, whole = show(run_dir), show(run_dir, everything=True)
    for text in ("composer-plugin-torch-sampler 0.1.0", "solve_rate_after", "grad_norm"):
        assert text in whole and text not in brief


def test_the_behavior_compared_is_that_of_one_case_evaluated_at_both_moments():
    entries = [
        Evaluation("before/main", 0, {"solve_rate": 0.2, "tool/read": 0.5, "turns_mean": 4.0}),
        Evaluation("after/new", 0, {"solve_rate": 0.9}),
        Evaluation("after/main", 9, {"solve_rate": 0.7, "tool/edit": 0.5, "turns_mean": 5.0}),
    ]
    rows = [("solve_rate", 0.2, 0.7), ("turns_mean", 4.0, 5.0), ("tool/edit", 0.0, 0.5), ("tool/read", 0.5, 0.0)]
    assert changed(entries) == ("main", rows)
    assert changed(entries[:2]) == ("", [])


def test_what_each_evaluations_calls_were_is_told_where_none_was_made_before_and_after(run_dir, tmp_path):
    found = Evaluated(name="after/lines", step=0, metrics={"tool/edit_lines": 0.25, "tool/grep": 0.75, "calls_mean": 4})
    events_path(tmp_path).write_text(json.dumps(to_record(found)) + "\n")
    assert re.search(r"^Calls\nafter/lines +edit_lines 25%, grep 75%$", show(tmp_path), re.MULTILINE)
    assert "\nCalls\n" not in show(run_dir), "it has them in what the policy does differently"


def test_a_trace_is_shown_by_its_id(run_dir):
    name = next((run_dir / "traces").iterdir()).stem
    outcome = CliRunner().invoke(command, [str(run_dir), "--trace", name], catch_exceptions=False)
    assert outcome.exit_code == 0
    assert outcome.output.startswith(f"trace {name}")


def test_a_trace_is_shown_with_the_value_and_weight_of_every_reward_those_of_its_group_too(tmp_path):
    run_dir = SyntheticRun(rl_steps=2).write(tmp_path / "run")
    id = next(path.stem for path in sorted((run_dir / "traces").iterdir()) if path.stem.startswith("rl-"))
    own = readable(decode((run_dir / "traces" / f"{id}.trace").read_bytes()))
    scores = ((Score("mine/shortest", "0.3", 0.25, weight=2.0),), (Score("mine/shortest", "0.3", 0.0),))
    scored = GroupScored(group="g", task_id="t", rewards=(1.5, 0.0), episodes=(id, "rl-other"), group_scores=scores)
    with events_path(run_dir).open("a") as file:
        file.write(json.dumps(to_record(scored)) + "\n")
    (value,) = re.findall(r"  hidden-tests/\S+ 0.1.0: value (\S+) x weight 1", own)
    page = show(run_dir, id)
    assert "  mine/shortest 0.3: value 0.25 x weight 2\n" in page
    assert f"reward {float(value) + 0.5:g}, the sum of\n  hidden-tests/" in page


def test_an_unknown_trace_suggests_the_nearest(run_dir):
    name = next((run_dir / "traces").iterdir()).stem
    with pytest.raises(ConfigError, match=f"did you mean '{name}'"):
        show(run_dir, f"{name}x")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no run in this folder"):
        show(tmp_path)


def test_a_run_killed_at_any_event_can_be_shown(run_dir, tmp_path):
    lines = events_path(run_dir).read_bytes()
    for share in (0.0, 0.1, 0.35, 0.8, 0.99):
        events_path(tmp_path).write_bytes(lines[: int(len(lines) * share)])
        assert "finished" not in show(tmp_path)


def test_steps_repeated_after_a_resume_count_once_and_idle_time_does_not(run_dir):
    records = list(read_events(run_dir))
    once = History().extend(records)
    late = [{**record, "time_s": record["time_s"] + 50_000} for record in records]
    twice = History().extend(records[: len(records) // 2]).extend(late)
    assert twice.starts == 2
    assert len(twice.episodes) == len(once.episodes)
    assert twice.stages["rl"].series("loss") == once.stages["rl"].series("loss")
    assert once.spent_s < twice.spent_s < 2 * once.spent_s
    assert twice.status == "finished"


def test_a_sparkline_rises_with_its_values():
    assert sparkline(range(8)) == "▁▂▃▄▅▆▇█"
    assert len(sparkline(range(1000))) == 32
    assert sparkline([2.0, 2.0]) == "▄▄"


def test_the_ledger_tells_what_was_trained_dropped_lost_refused_and_void(run_dir, tmp_path):
    status = json.loads((run_dir / "status.json").read_text())
    section = show(run_dir).partition("Ledger of rl after step 8\n")[2].partition("\n\n")[0]
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in section.splitlines())
    assert rows["trained groups"] == str(status["ledger"]["trained_groups"]) == "16"
    assert rows["staleness"] == ", ".join(f"{late}: {n}" for late, n in status["ledger"]["staleness"].items())
    assert rows["slots"] == "pending: 0, running: 0, valid: 0, void: 0"
    for name in ("lost", "refused results", "late results"):
        assert rows[name] == str(status["ledger"][name.replace(" ", "_")])
    real = Ledger(LedgerConfig(steps=1, groups_per_step=1, group_size=2), str).table()
    assert status["ledger"].keys() == real.keys() and status["ledger"]["slots"].keys() == real["slots"].keys()
    copy = SyntheticRun(rl_steps=4, status="killed").write(tmp_path / "killed")
    assert re.search(r"Ledger of rl after step 2\n(.*\n)*slots +.*running: [1-9]", show(copy))
    for other in ("[]", "{}", '{"ledger": 3}'):
        (copy / "status.json").write_text(other)
        assert "Ledger" not in show(copy)
