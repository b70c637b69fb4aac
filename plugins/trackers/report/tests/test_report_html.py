import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from attrs import evolve

from composer_core.history import EpisodeRow, Evaluation, History, StageLog
from composer_core.protocols import BuildContext
from composer_core.tracking import events_path
from composer_core.trees import File, Patch
from composer_core.types import Score, SlotKey
from composer_plugin_report.config import HtmlConfig
from composer_plugin_report.html import HtmlTracker, write_report
from composer_plugin_report.model import charts, evaluations, page_model, pairs, repeated, sample
from composer_plugin_report.page import embedded
from composer_plugin_report.traces import cut, patch_model, why
from composer_testing.contracts.trackers import HOSTILE, TrackerContract, sample_events
from composer_testing.fakes.runs import SyntheticRun, make_trace

ATTACK = "</script><img src=x onerror=\"document.body.dataset.owned='yes'\"><!--<script>{{DATA}}&lt;b&gt;\u2028"


class TestHtmlTracker(TrackerContract):
    def build(self, build):
        return HtmlTracker(HtmlConfig(), build)


class _Reader(HTMLParser):
    """Collects tags, attributes and the text of script elements as a browser would split them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.scripts, self._in = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "onerror", "onload")]
        if tag == "script":
            self.scripts.append("")
            self._in = True

    def handle_endtag(self, tag):
        self._in = self._in and tag != "script"

    def handle_data(self, data):
        if self._in:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "run"
    SyntheticRun(rl_steps=15, name=f"run {ATTACK}", output=ATTACK).write(folder)
    (folder / "config.json").write_text(json.dumps({"name": ATTACK}))
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def rendered(hostile_run, tmp_path_factory):
    """The page after a real browser has run it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser, "this test needs the Debian package chromium"
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    page = (hostile_run / "report.html").as_uri()
    argv = [browser, "--headless", "--no-sandbox", "--disable-gpu", *quiet, profile, "--dump-dom", page]
    done = subprocess.run(argv, capture_output=True, timeout=120, check=True)
    return done.stdout.decode()


def _data(page):
    return json.loads(_Reader(page).scripts[0])


# --- safety -------------------------------------------------------------------------------------------------------


def test_hostile_text_stays_text_when_the_page_is_parsed(hostile_run):
    page = (hostile_run / "report.html").read_text()
    reader = _Reader(page)
    assert "img" not in reader.tags
    assert reader.tags.count("script") == 2
    assert reader.links == []
    results = [
        call["result"]["text"] for trace in _data(page)["traces"] for turn in trace["turns"] for call in turn["calls"]
    ]
    assert any(ATTACK in text for text in results), "nothing is lost by escaping"


def test_hostile_text_stays_text_in_a_real_browser(rendered):
    assert "owned" not in re.search(r"<body[^>]*>", rendered).group()
    body = rendered[rendered.index('<div id="app">') : rendered.index('<script type="application/json"')]
    reader = _Reader(body)
    assert "img" not in reader.tags
    assert "script" not in reader.tags
    assert all(link.startswith("#") for link in reader.links)
    assert "&lt;/script&gt;&lt;img src=x onerror=" in body


def test_the_page_asks_nothing_of_any_network(hostile_run):
    page = (hostile_run / "report.html").read_text()
    shell = page.replace(_Reader(page).scripts[0], "")
    assert set(re.findall(r"https?://[^\s\"'`]+", shell)) == {"http://www.w3.org/2000/svg"}, "a name, never fetched"
    assert "default-src &#x27;none&#x27;" in page


def test_no_character_that_starts_markup_is_left_in_embedded_data():
    text = embedded({"a": ATTACK, "b": HOSTILE, "c": [float("nan"), 1.5]})
    assert not set("<>&\u2028") & set(text)
    assert text.isascii()
    assert json.loads(text) == {"a": ATTACK, "b": HOSTILE, "c": [None, 1.5]}


# --- content ------------------------------------------------------------------------------------------------------


def test_a_real_browser_draws_every_part(rendered):
    app = rendered[rendered.index('<div id="app">') :]
    for title in (
        "Reward",
        "Solve rate and best of group",
        "Solve rate during training",
        "Tool mix",
        "Parallel width",
        "Throughput",
        "Accuracy",
    ):
        assert f"<h3>{title}</h3>" in app
    assert len(re.findall(r'<path class="main s\d" d="M[\d.]+ [\d.]+L', app)) >= 18
    for slip in ("NaN", "[object", "undefined"):
        assert slip not in app.split("<script")[0]
    for text in ("after", "+40.0 points", "hidden-tests/hidden", "4.0 %", "Time by stage", "composer-plugin-policy"):
        assert text in app
    assert "Ledger of rl after step 15" in app and "<td>trained groups</td><td>30</td>" in app.replace(
        ' class="text"', ""
    )
    assert re.search(r'<div class="cut">-     return max\(low, max\(value, high\)\)</div>', app)


def test_every_metric_of_a_stage_is_drawn_once():
    metrics = {"loss": 1.0, "tool/grep": 0.5, "tool/read": 0.5, "solve_rate": 0.1, "brand_new": 3.0}
    made = charts(StageLog("rl", metrics={1: metrics}))
    drawn = [series["name"] for chart in made for series in chart["series"]]
    assert sorted(drawn) == ["brand_new", "grep", "loss", "read", "solve_rate"]
    assert next(chart for chart in made if chart["title"] == "Tool mix")["kind"] == "area"


def test_the_parts_of_a_reward_share_a_chart():
    metrics = {f"{kind}/{name}": 0.5 for kind in ("reward", "reward_std") for name in ("a/solved", "b/effort")}
    made = {chart["title"]: chart for chart in charts(StageLog("rl", metrics={1: {"reward_mean": 1.0, **metrics}}))}
    assert [series["name"] for series in made["Parts of the reward"]["series"]] == ["a/solved", "b/effort"]
    assert len(made) == 3


def test_long_curves_are_thinned_and_keep_their_ends():
    made = charts(StageLog("rl", metrics={step: {"loss": float(step)} for step in range(1, 5001)}))
    points = made[0]["series"][0]["points"]
    assert len(points) <= 600
    assert (points[0], points[-1]) == ((1, 1.0), (5000, 5000.0))


def test_evaluations_pair_the_arms_of_a_case_and_put_controls_last():
    names = ("control/blank", "before/new_bug", "before/other", "after/new_bug")
    rows = evaluations([Evaluation(name, 0, {"solve_rate": 0.5}) for name in names], {"control_guess": 0.3})
    told = [(row["case"], [arm["arm"] for arm in row["arms"]]) for row in rows]
    assert told == [("new_bug", ["before", "after"]), ("other", ["before"]), ("blank", ["control"])]


def test_controls_known_to_the_summary_alone_are_shown():
    rows = evaluations([Evaluation("after/x", 0, {"solve_rate": 0.5})], {"control_guess": 0.3, "seed": 1})
    assert [row["case"] for row in rows if row["control"]] == ["guess"]


def test_an_evaluation_repeated_over_steps_becomes_a_curve():
    entries = [Evaluation(f"step-{step}/new_bug", 0, {"solve_rate": step / 20}) for step in (14, 2)]
    assert repeated(entries)["series"] == [{"name": "new_bug", "points": [(2, 0.1), (14, 0.7)], "band": []}]
    assert evaluations(entries, {}) == []
    assert repeated([Evaluation("after/new_bug", 14, {"solve_rate": 0.5})]) is None


# --- traces -------------------------------------------------------------------------------------------------------


def _row(index, outcome, purpose="rl"):
    return EpisodeRow(f"e{index}", "t", purpose, outcome, None, 0.0, None, f"traces/e{index}.trace", float(index))


def test_a_sample_of_traces_is_bounded_covers_rare_outcomes_and_spans_the_run():
    rows = [_row(index, "failed" if index % 2 else "solved") for index in range(5000)]
    rows += [_row(9000, "void"), _row(9001, "solved", "eval")]
    shown = sample(rows, 50)
    assert len({row.id for row in shown}) == len(shown) == 50
    assert {row.id for row in shown} >= {"e9000", "e9001"}
    times = [row.time_s for row in shown if row.time_s < 5000]
    assert times == sorted(times)
    assert max(later - sooner for sooner, later in pairwise([0.0, *times, 5000.0])) < 700
    assert sample(rows, 50) == shown
    assert sample(rows, 0) == []


def test_the_patch_is_a_diff_against_what_was_there():
    trace = make_trace(SlotKey("t", 0), True)
    (file,) = patch_model(trace, 6000)
    assert file["how"] == "changed"
    assert ["-", "    return max(low, max(value, high))"] in file["lines"]
    assert ["+", "    return max(low, min(value, high))"] in file["lines"]


def test_new_deleted_and_skipped_files_of_a_patch_are_told_apart():
    patch = Patch((File("new.py", b"x\n"),), ("gone.py",), ("link",))
    trace = evolve(make_trace(SlotKey("t", 0), True), patch=patch, originals=(File("gone.py", b"y\n"),))
    told = {row["path"]: (row["how"], [mark for mark, _ in row["lines"]]) for row in patch_model(trace, 6000)}
    assert told == {"gone.py": ("deleted", ["@", "-"]), "new.py": ("new", ["@", "+"]), "link": ("skipped", [])}


def test_why_an_episode_was_not_solved_is_said_in_a_line():
    solved, failed, void = (
        make_trace(SlotKey("t", 0), True),
        make_trace(SlotKey("t", 1), False),
        make_trace(SlotKey("t", 2), False, void="sandbox"),
    )
    assert why(solved) == ""
    assert why(failed) == "ran out of turns; its last command exited with 1; hidden-tests/hidden gave 0"
    assert "changed nothing" in why(evolve(failed, patch=Patch()))
    assert why(void) == "the overlay could not be mounted"


def test_attempts_made_before_and_after_are_paired_and_changed_outcomes_come_first():
    def row(moment, attempt, outcome):
        id = f"{moment}-eval-policy-t1.0-task-{attempt}"
        return EpisodeRow(id, "task", f"{moment}/main", outcome, None, 0.0, None, f"traces/{id}.trace", 0.0)

    rows = [row("before", n, "failed") for n in range(9)] + [row("after", n, "failed") for n in range(8)]
    rows += [row("after", 8, "solved"), row("before", 20, "solved")]
    found = pairs(rows, 2)
    assert len(found) == 4
    assert found["before-eval-policy-t1.0-task-8"].outcome == "solved"
    assert found["after-eval-policy-t1.0-task-8"].outcome == "failed"
    assert pairs(rows, 0) == {}


def test_an_interval_is_drawn_as_a_band_and_not_as_a_curve_of_its_own():
    metrics = {step: {"solve_rate": 0.5, "solve_rate_ci95": 0.1} for step in (1, 2)}
    (chart,) = charts(StageLog("rl", metrics=metrics))
    assert chart["series"][0]["band"] == [(1, 0.4, 0.6), (2, 0.4, 0.6)]


def test_long_texts_are_cut_and_say_so():
    shown = cut("a" * 900 + "z" * 100, 300)
    assert shown.startswith("a" * 200 + "\n[700 characters left out]\n")
    assert shown.endswith("z" * 100)


def test_an_episode_has_the_scores_of_its_group_beside_its_own(tmp_path):
    folder = SyntheticRun(rl_steps=2, groups=1).write(tmp_path / "run")
    history = History.read(folder)
    score = Score("mine/shortest", "0.3", 0.25, weight=2.0)
    history.group_scores = {row.id: (score,) for row in history.episodes.values()}
    traces = page_model(folder, history, HtmlConfig())["traces"]
    assert traces
    for trace in traces:
        assert trace["scores"][-1].items() >= {"reward": "mine/shortest", "value": 0.25, "weight": 2.0}.items()


def test_traces_that_are_gone_or_point_outside_the_run_are_left_out(tmp_path):
    folder = SyntheticRun(rl_steps=2, groups=1).write(tmp_path / "run")
    gone, outside, *kept = sorted((folder / "traces").iterdir())
    (tmp_path / "secret.trace").write_bytes(outside.read_bytes())
    events_path(folder).write_text(events_path(folder).read_text().replace(f"traces/{outside.name}", "../secret.trace"))
    gone.unlink()
    shown = {trace["id"] for trace in _data(write_report(folder).read_text())["traces"]}
    assert shown == {path.stem for path in kept}


# --- when it is written -------------------------------------------------------------------------------------------


def test_the_tracker_writes_the_same_page_at_the_end_as_the_folder_gives_later(tmp_path):
    folder = tmp_path / "run"
    tracker = HtmlTracker(HtmlConfig(), BuildContext(folder))
    for event in sample_events():
        tracker.write(event)
    live = _data((folder / "report.html").read_text())
    assert live["status"] == "finished"
    assert live["stages"][0]["charts"][0]["title"] == "Reward"
    assert live["summary"]["solve_rate_after"] == 0.5


def test_a_resumed_run_keeps_what_was_told_before(tmp_path):
    folder = SyntheticRun(rl_steps=4, status="killed").write(tmp_path / "run")
    tracker = HtmlTracker(HtmlConfig(), BuildContext(folder))
    for event in sample_events():
        tracker.write(event)
    data = _data((folder / "report.html").read_text())
    assert [stage["name"] for stage in data["stages"]] == ["pretrain", "sft", "rl"]
    assert data["starts"] == 2


def test_a_run_still_going_and_an_empty_history_have_a_page(tmp_path):
    folder = SyntheticRun(rl_steps=2, status="killed").write(tmp_path / "run")
    assert _data(write_report(folder).read_text())["status"] == "running"
    assert _data(write_report(tmp_path / "empty", history=History()).read_text())["episodes"] == 0


def test_the_module_writes_the_report_of_a_folder_and_refuses_others(tmp_path):
    folder = SyntheticRun(rl_steps=2).write(tmp_path / "run")
    argv = [sys.executable, "-m", "composer_plugin_report"]
    done = subprocess.run([*argv, str(folder)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(folder / "report.html")
    refused = subprocess.run([*argv, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "no run in this folder" in refused.stderr
