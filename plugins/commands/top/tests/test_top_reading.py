"""What is read of a run folder: a diary that grows, is cut, is replaced or is damaged; the status; the lock."""

from __future__ import annotations

import fcntl
import json
import os

import pytest
from diary import Diary

from composer_plugin_top import tail as tail_module
from composer_plugin_top.fold import MOST_NAMES, OTHERS, Fold
from composer_plugin_top.holder import held_here
from composer_plugin_top.series import BUCKETS, RECENT_S, Series
from composer_plugin_top.status import read_status
from composer_plugin_top.tail import Tail
from composer_plugin_top.watch import SEEN, Watch, split


def all_of(tail):
    found = []
    while (lines := tail.read()) is not None:
        found += lines
    return found


# --- the tail -----------------------------------------------------------------------------------------------------


def test_only_whole_lines_are_read_and_each_once(tmp_path):
    path, tail = tmp_path / "log", Tail(tmp_path / "log")
    assert all_of(tail) == []
    path.write_bytes(b"one\ntw")
    assert all_of(tail) == [b"one"] and all_of(tail) == []
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert all_of(tail) == [b"two", b"three"] and tail.share == 1.0


def test_a_cut_line_that_a_resumed_run_removes_is_no_restart(tmp_path):
    path, tail = tmp_path / "log", Tail(tmp_path / "log")
    path.write_bytes(b"one\ncut of")
    assert all_of(tail) == [b"one"]
    path.write_bytes(b"one\n")
    os.truncate(path, 4)
    assert all_of(tail) == []
    with path.open("ab") as file:
        file.write(b"two\n")
    assert all_of(tail) == [b"two"] and tail.restarts == 0


def test_a_shorter_or_another_file_is_read_from_its_start(tmp_path):
    path, tail = tmp_path / "log", Tail(tmp_path / "log")
    path.write_bytes(b"one\ntwo\n")
    all_of(tail)
    path.write_bytes(b"new\n")
    assert all_of(tail) == [b"new"] and tail.restarts == 1
    (tmp_path / "other").write_bytes(b"a much longer one\n")
    (tmp_path / "other").replace(path)
    assert all_of(tail) == [b"a much longer one"] and tail.restarts == 2


def test_a_line_longer_than_a_piece_is_skipped_and_the_rest_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tail_module, "PIECE_BYTES", 16)
    path, tail = tmp_path / "log", Tail(tmp_path / "log")
    path.write_bytes(b"one\n" + b"x" * 100 + b"\ntwo\n" + b"y" * 40)
    assert all_of(tail) == [b"one", b"two"]
    with path.open("ab") as file:
        file.write(b"y\nthree\n")
    assert all_of(tail) == [b"three"]


# --- series -------------------------------------------------------------------------------------------------------


def test_a_series_keeps_every_count_in_a_bounded_number_of_buckets():
    series = Series()
    for second in range(100_000):
        series.add(float(second), episodes=2, tokens=10.0)
    assert len(series.buckets) <= BUCKETS
    assert sum(bucket.episodes for bucket in series.buckets) == 200_000
    assert series.width_s * len(series.buckets) == pytest.approx(100_000, rel=0.01)
    assert series.rate("episodes") == pytest.approx(2.0) and series.rate("tokens") == pytest.approx(10.0)


def test_merged_buckets_add_counts_and_keep_the_largest_of_what_cannot_be_added():
    series = Series()
    for second in range(BUCKETS + 1):
        series.at(float(second)).staleness = float(second % 2)
    assert series.width_s == 2.0
    assert [bucket.staleness for bucket in series.buckets[:-1]] == [1.0] * (BUCKETS // 2)


def test_the_rate_of_a_run_that_has_just_begun_is_of_the_time_that_it_had():
    series = Series()
    series.add(0.2, episodes=1)
    series.add(10.0, episodes=19)
    assert series.rate("episodes") == pytest.approx(2.0)
    series.at(10.0 + RECENT_S)
    assert series.rate("episodes") == 0.0


# --- the fold -----------------------------------------------------------------------------------------------------


def read(folder):
    fold = Fold()
    fold.add_lines((folder / "events.jsonl").read_bytes().splitlines())
    return fold


def test_the_time_between_a_kill_and_a_resume_has_no_width(tmp_path):
    diary = Diary(tmp_path)
    diary.start()
    diary.now_s += 50
    diary.end(diary.begin())
    diary.begin()
    diary.now_s += 40_000
    diary.start()
    diary.now_s += 30
    diary.end(diary.begin())
    fold = read(tmp_path)
    assert fold.starts == 2 and fold.run_s == pytest.approx(80.0)
    assert len(fold.series.buckets) == 81
    assert fold.series.buckets[-2].running == 0, "what ran when it was killed does not run any more"


def test_what_nobody_waits_for_any_more_is_not_under_way(tmp_path):
    diary = Diary(tmp_path)
    diary.start()
    begun = [diary.begin() for _ in range(4)]
    diary.now_s += 1
    diary.end(begun[0])
    diary.cancel(begun[1])
    diary.now_s += 1
    diary.begin()
    assert read(tmp_path).series.to_json()["running"] == [4, 4, 3]
    diary.leave()
    diary.now_s += 1
    diary.begin()
    assert read(tmp_path).series.to_json()["running"][-1] == 1, "what a stage left when it ended is nobody's"


def test_what_is_left_is_told_at_the_pace_of_this_process(tmp_path):
    diary = Diary(tmp_path)
    diary.start()
    for number in range(1, 4):
        diary.now_s += 100
        diary.step(number)
    diary.now_s += 5_000
    diary.start()
    for number in (4, 5):
        diary.now_s += 10
        diary.step(number)
    picture = Watch(tmp_path, lambda: diary.now_s).look()
    assert picture["stage"]["step"] == 5 and picture["stage"]["left_s"] == pytest.approx(50.0)


def test_lines_that_are_no_events_are_counted_and_passed_over(tmp_path):
    diary = Diary(tmp_path)
    diary.start()
    bad = [
        "{",
        "[]",
        "3",
        '{"event": "StepEnded"}',
        '{"event": "EpisodeEnded", "time_s": 1, "result": {}}',
        "[" * 90_000,
    ]
    bad += ['{"event": "StepEnded", "time_s": "x"}', '{"event": ["StepEnded"], "time_s": 1}', "\xff"]
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write("\n".join([*bad, '{"event": "OfAnotherVersion", "time_s": 5}']) + "\n")
    diary.end(diary.begin())
    fold = read(tmp_path)
    assert fold.unreadable == len(bad) and fold.outcomes == {"solved": 1}
    picture = Watch(tmp_path).look()
    assert any(f"{len(bad)} lines of events.jsonl are no events" in text for text in picture["problems"])


def test_names_that_a_run_makes_up_do_not_grow_the_fold_without_end(tmp_path):
    diary = Diary(tmp_path)
    diary.start()
    for number in range(3 * MOST_NAMES):
        diary.end(diary.begin(), void=f"cause {number}")
        diary.fault(plugin=f"plugin-{number}", error="x" * 10_000)
    fold = read(tmp_path)
    assert len(fold.outcomes) <= MOST_NAMES + 1 and fold.outcomes[OTHERS] > 0
    assert sum(fold.outcomes.values()) == 3 * MOST_NAMES == sum(seen.times for seen in fold.faults.values())
    assert len(fold.faults) <= MOST_NAMES + 1 and all(len(seen.error) < 1000 for seen in fold.faults.values())


# --- the status ---------------------------------------------------------------------------------------------------


def test_a_status_of_another_version_is_read_as_far_as_it_can_be_understood(tmp_path):
    told = {"time_s": 5, "step": "three", "version": True, "ledger": {"slots": {"running": 4, "odd": "x"}, "new": []},
            "executor": {"a": float("nan"), "b": 1, "c": None}, "running": [3, {"task": 1}]}  # fmt: skip
    (tmp_path / "status.json").write_text(json.dumps(told))
    status, problem = read_status(tmp_path)
    assert problem == "" and status.step is None and status.version is None
    assert status.tables == {"slots": {"running": 4}} and status.executor == {"b": 1.0}
    assert [(episode.task, episode.for_s) for episode in status.oldest] == [("", 0.0)]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"time_s": "now"}', '{"time_s": NaN}', "[" * 100_000, "\xff"])
def test_a_status_that_is_none_is_a_problem_that_is_told_and_ends_nothing(tmp_path, text):
    diary = Diary(tmp_path)
    diary.start()
    (tmp_path / "status.json").write_bytes(text.encode("latin-1"))
    picture = Watch(tmp_path).look()
    assert picture["status"] is None and picture["name"] == "quickstart"
    assert [problem for problem in picture["problems"] if "status.json" in problem]


def test_figures_of_parts_become_tables(tmp_path):
    whole, parts = split(
        {"a": 1, "sampler/tokens": 2, "workers/3/running": 4, "workers/3/age_s": 5, "workers/4/running": 6}
    )
    assert whole == {"a": 1, "sampler/tokens": 2}
    assert parts == {"workers": {"3": {"running": 4, "age_s": 5}, "4": {"running": 6}}}


# --- the watch ----------------------------------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path):
    """A run folder whose lock somebody holds."""
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield tmp_path


def test_whether_the_lock_is_held_is_seen_without_touching_it(held):
    assert held_here(held) is True
    other = held / "other"
    other.mkdir()
    assert held_here(other) is None
    (other / "lock").touch()
    assert held_here(other) is False
    assert held_here(held, held / "no-such-list") is None


def test_a_run_that_says_nothing_is_quiet_while_its_process_lives_and_killed_afterwards(held):
    diary = Diary(held)
    diary.start()
    watch = Watch(held, lambda: diary.now_s + 3600)
    picture = watch.look()
    assert (picture["state"]["word"], picture["age_s"]) == ("quiet", 3600) and "1:00:00 old" in picture["old"]
    (held / "lock").unlink()
    (held / "lock").touch()
    assert watch.look()["state"]["word"] == "killed"
    diary.finish("interrupted")
    assert watch.look()["state"]["word"] == "interrupted"


def test_a_run_that_speaks_is_running_wherever_its_process_is(tmp_path):
    diary = Diary(tmp_path)
    diary.start()
    (tmp_path / "lock").touch()
    assert Watch(tmp_path, lambda: diary.now_s + 3).look()["state"]["word"] == "running"
    assert Watch(tmp_path, lambda: diary.now_s - 60).look()["old"] == "figures of now", "a clock that runs behind"


def test_the_status_speaks_for_a_run_whose_diary_is_silent(tmp_path):
    diary = Diary(tmp_path)
    diary.start()
    diary.now_s += 600
    diary.status()
    assert Watch(tmp_path, lambda: diary.now_s + 1).look()["state"]["word"] == "running"


def test_a_long_diary_is_read_in_bounded_looks_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(tail_module, "PIECE_BYTES", 2000)
    diary = Diary(tmp_path)
    diary.start()
    for _ in range(60):
        diary.end(diary.begin())
    watch = Watch(tmp_path, lambda: diary.now_s)
    first = watch.look(0.0)
    assert first["state"]["word"] == "reading" and first["read"] < 1.0
    whole = watch.look(30.0)
    assert whole["state"]["word"] == "running" and whole["read"] == 1.0 and whole["outcomes"] == {"solved": 60}


def test_states_of_slots_are_kept_once_for_each_time_that_they_were_told_and_boundedly(tmp_path):
    diary = Diary(tmp_path)
    diary.start()
    watch = Watch(tmp_path)
    for _ in range(SEEN + 20):
        diary.now_s += 1
        diary.status()
        watch.look()
    watch.look()
    seen = watch.look()["seen"]
    assert len(seen["at_s"]) == SEEN == len(set(seen["at_s"])) and seen["running"] == [9] * SEEN


def test_a_look_changes_nothing_in_the_folder(tmp_path):
    diary = Diary(tmp_path)
    diary.start()
    diary.status()
    (tmp_path / "events.jsonl").open("a").close()
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b"cut")
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    before = {path.name: (path.read_bytes(), path.stat().st_mtime) for path in tmp_path.iterdir()}
    os.chmod(tmp_path, 0o555)
    Watch(tmp_path).look()
    os.chmod(tmp_path, 0o755)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime) for path in tmp_path.iterdir()} == before
