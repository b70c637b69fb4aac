import io
import json
import os
import threading
import time

import pytest
from rich.console import Console

from composer_core import events
from composer_core.console import ConsoleConfig, ConsoleTracker
from composer_core.errors import StoreError
from composer_core.protocols import BuildContext
from composer_core.records import NoConfig
from composer_core.tracking import JsonlTracker, Trackers, events_path, read_events, to_record
from composer_core.types import Fault
from composer_testing.contracts.trackers import HOSTILE, TrackerContract, sample_events


class TestJsonlTracker(TrackerContract):
    def build(self, build):
        return JsonlTracker(NoConfig(), build)


class TestConsoleTrackerOnAFile(TrackerContract):
    def build(self, build):
        return ConsoleTracker(ConsoleConfig(), build, _console(terminal=False))


class TestConsoleTrackerOnATerminal(TrackerContract):
    def build(self, build):
        return ConsoleTracker(ConsoleConfig(), build, _console(terminal=True))


def _console(terminal):
    return Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), force_terminal=terminal, width=120)


def _jsonl(folder):
    return JsonlTracker(NoConfig(), BuildContext(folder))


def _step(step, at_s, **metrics):
    return events.StepEnded(time_s=at_s, stage="rl", step=step, steps=100, version=0, metrics=metrics)


# --- events.jsonl -------------------------------------------------------------------------------------------------


def test_every_event_is_read_back_as_it_was_told(tmp_path):
    tracker, told = _jsonl(tmp_path), sample_events(HOSTILE)
    for event in told:
        tracker.write(event)
        assert list(read_events(tmp_path))[-1]["event"] == type(event).__name__, "each line is flushed"
    tracker.close()
    assert list(read_events(tmp_path)) == [json.loads(json.dumps(to_record(event))) for event in told]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_cut_by_a_kill_is_left_out_and_the_resumed_run_carries_on(tmp_path, cut):
    tracker = _jsonl(tmp_path)
    for event in sample_events():
        tracker.write(event)
    tracker.close()
    path = events_path(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    kept = len(sample_events()) - 1
    assert len(list(read_events(tmp_path))) == kept
    tracker = _jsonl(tmp_path)
    tracker.write(sample_events()[0])
    tracker.close()
    assert [record["event"] for record in read_events(path)][kept:] == ["RunStarted"]


def test_a_file_that_is_one_long_cut_line_starts_afresh(tmp_path):
    events_path(tmp_path).write_bytes(b'{"event": "' + b"x" * 200_000)
    _jsonl(tmp_path).close()
    assert events_path(tmp_path).read_bytes() == b""


def test_a_broken_line_in_the_middle_is_an_error_that_names_its_place(tmp_path):
    events_path(tmp_path).write_text('{"event": "A"}\n{"eve\n{"event": "B"}\n')
    with pytest.raises(StoreError, match="line 2"):
        list(read_events(tmp_path))


def test_numbers_that_are_not_finite_keep_the_file_strict_json(tmp_path):
    tracker = _jsonl(tmp_path)
    tracker.write(_step(1, 0.0, loss=float("nan"), reward_mean=float("-inf")))
    tracker.close()

    def refuse(name):
        raise AssertionError(name)

    record = json.loads(events_path(tmp_path).read_text(), parse_constant=refuse)
    assert record["metrics"] == {"loss": "nan", "reward_mean": "-inf"}


# --- the fan-out --------------------------------------------------------------------------------------------------


class _Recorder:
    def __init__(self):
        self.seen, self.threads, self.closed = [], set(), 0

    def write(self, event):
        self.seen.append(event)
        self.threads.add(threading.get_ident())

    def close(self):
        self.closed += 1


class _Broken(_Recorder):
    def write(self, event):
        super().write(event)
        raise ZeroDivisionError("tracker bug")

    def close(self):
        raise OSError("disk gone")


def test_events_arrive_in_order_from_one_other_thread_and_close_is_safe_twice():
    first, second = _Recorder(), _Recorder()
    trackers = Trackers({"a/first": first, "a/second": second})
    told = [_step(step, 0.0) for step in range(500)]
    for event in told:
        trackers.emit(event)
    trackers.close()
    trackers.close()
    trackers.emit(told[0])
    assert first.seen == second.seen == told
    assert first.threads == second.threads != {threading.get_ident()}
    assert (first.closed, second.closed) == (1, 1)


def test_a_broken_tracker_is_attributed_counted_and_stops_nobody():
    broken, whole = _Broken(), _Recorder()
    trackers = Trackers({"a/broken": broken, "a/whole": whole})
    told = sample_events()
    for event in told:
        trackers.emit(event)
    trackers.close()
    assert broken.seen == told
    assert trackers.failures == {"a/broken": len(told) + 1}
    (news,) = [event for event in whole.seen if event not in told]
    assert isinstance(news, events.FaultRecorded)
    assert news.fault == Fault("tracker", "a/broken", str(news.fault.error))
    assert "a/broken (trackers) raised ZeroDivisionError: tracker bug" in news.fault.error
    assert news.time_s == told[0].time_s
    assert [event for event in whole.seen if event is not news] == told
    assert whole.closed == 1


def test_a_tracker_that_asks_for_an_exit_is_a_fault_like_any_other():
    class Leaving(_Recorder):
        def write(self, event):
            super().write(event)
            raise SystemExit(1)

        def close(self):
            raise KeyboardInterrupt

    leaving, whole = Leaving(), _Recorder()
    trackers = Trackers({"a/leaving": leaving, "a/whole": whole})
    told = [_step(1, 0.0), _step(2, 0.0)]
    for event in told:
        trackers.emit(event)
    assert trackers.flush()
    (fault,) = trackers.close()
    assert leaving.seen == told
    assert "a/leaving (trackers) raised KeyboardInterrupt" in str(fault)
    assert [event.fault.error for event in whole.seen if event not in told] == [
        "a/leaving (trackers) raised SystemExit: 1"
    ]


def test_every_tracker_may_fail_even_while_it_is_told_of_another(tmp_path):
    trackers = Trackers({"a/first": _Broken(), "a/second": _Broken()})
    for step in range(3):
        trackers.emit(_step(step, 0.0))
    assert trackers.flush()
    assert len(trackers.close()) == 2
    assert trackers.failures == {"a/first": 3 + 1, "a/second": 1 + 3 + 1}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_is_gone(monkeypatch):
    def dies(self, event, names):
        raise SystemExit

    monkeypatch.setattr(Trackers, "_write", dies)
    recorder = _Recorder()
    trackers = Trackers({"a/b": recorder})
    trackers.emit(_step(1, 0.0))
    started_s = time.monotonic()
    assert not trackers.flush(timeout_s=60)
    trackers.close(timeout_s=60)
    assert time.monotonic() - started_s < 10
    assert recorder.closed == 1, "what it holds is closed all the same"


def test_flush_waits_for_what_was_emitted():
    recorder = _Recorder()
    trackers = Trackers({"a/b": recorder})
    for step in range(100):
        trackers.emit(_step(step, 0.0))
    assert trackers.flush()
    assert len(recorder.seen) == 100
    trackers.close()
    assert trackers.flush()


def test_a_stuck_tracker_does_not_hold_up_the_run():
    gate = threading.Event()

    class Stuck(_Recorder):
        def write(self, event):
            gate.wait(30)

    trackers = Trackers({"a/stuck": Stuck()})
    for step in range(1000):
        trackers.emit(_step(step, 0.0))
    assert not trackers.flush(timeout_s=0.01)
    gate.set()
    trackers.close()


# --- the console --------------------------------------------------------------------------------------------------


def _told(told, *, terminal=False, every_s=10.0, folder):
    console = _console(terminal)
    tracker = ConsoleTracker(ConsoleConfig(every_s), BuildContext(folder), console)
    for event in told:
        tracker.write(event)
    tracker.close()
    console.file.flush()
    return console.file.buffer.getvalue().decode()


def test_plain_lines_are_rate_limited_and_marks_are_not(tmp_path):
    told = [events.RunStarted(time_s=0.0, name="r", run_dir="runs/r")]
    told += [events.StageStarted(time_s=0.0, stage="rl", kind="rl", steps=100)]
    told += [_step(step, float(step), reward_mean=0.5, solve_rate=0.25) for step in range(1, 51)]
    told += [events.Evaluated(time_s=51.0, name="x", step=50, metrics={"solve_rate": 0.5})] * 3
    text = _told(told, folder=tmp_path)
    assert [line.split()[3].rstrip(":") for line in text.splitlines() if " step " in line] == [
        f"{step}/100" for step in (1, 11, 21, 31, 41)
    ]
    assert text.count("evaluation x: solved 0.500") == 3
    assert "reward 0.500, solved 0.250" in text
    assert "\x1b" not in text


def test_time_left_follows_the_pace_of_this_start(tmp_path):
    told = [events.StageStarted(time_s=1000.0, stage="rl", kind="rl", steps=100), _step(81, 1300.0), _step(91, 1600.0)]
    text = _told(told, folder=tmp_path)
    assert "4:30 left" in text
    assert text.count("left") == 1, "one step, after whatever the stage did first, tells no pace"


def test_repeated_faults_are_counted_in_few_lines(tmp_path):
    fault = Fault("sandbox", "local/ns", "no room")
    told = [events.FaultRecorded(time_s=at / 10, fault=fault) for at in range(300)]
    lines = _told(told, folder=tmp_path).splitlines()
    assert len(lines) == 3
    assert "(201 so far): no room" in lines[-1]


def test_text_from_outside_cannot_steer_the_terminal(tmp_path):
    text = _told(sample_events(HOSTILE), folder=tmp_path)
    assert "\x1b" not in text
    assert "[bold]" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_that_nobody_reads_any_more_goes_silent(monkeypatch, tmp_path, terminal):
    reading, writing = os.pipe()
    with open(writing, "w", buffering=1, encoding="utf-8") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
        tracker = ConsoleTracker(ConsoleConfig(every_s=0.0), BuildContext(tmp_path))
        tracker.write(events.RunStarted(time_s=1.0, name="r", run_dir="runs/r"))
        assert b"run r started" in os.read(reading, 4096)
        os.close(reading)
        for event in sample_events(HOSTILE):
            tracker.write(event)
        tracker.close()
        print("what is said later goes nowhere", file=stderr)


def test_a_terminal_gets_a_live_line(tmp_path):
    text = _told(sample_events()[:8], terminal=True, folder=tmp_path)
    assert "1/2" in text
    assert "1 episodes" in text
