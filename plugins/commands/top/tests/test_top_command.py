"""`composer-run top` as text: what it prints, of which runs, and what it refuses."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from diary import ATTACK, CONTROLS, LEDGER, Diary

from composer_core.cli import group
from composer_plugin_top.text import drawn, make_console, number, printed, sparkline
from composer_plugin_top.watch import Watch
from composer_testing.fakes.runs import SyntheticRun

ROOT = Path(__file__).resolve().parents[4]
STEPS = 40
TOP = [sys.executable, "-m", "composer_core.cli", "top"]


@pytest.fixture
def diary(tmp_path):
    """A run in its third step, with everything that the picture shows."""
    diary = Diary(tmp_path)
    diary.start()
    for step in (1, 2, 3):
        diary.now_s += 10
        diary.end(diary.begin(), void="sandbox" if step == 2 else None)
        diary.begin()
        diary.step(step, staleness_max=float(step), train_s=2.5, step_s=10.0, reward_mean=0.5, solve_rate=0.25)
        diary.publish(step)
    diary.fault()
    diary.status()
    return diary


def text_of(diary, age_s=0.0):
    return printed(Watch(diary.folder, lambda: diary.now_s + age_s).look())


# --- what is shown ------------------------------------------------------------------------------------------------


def test_every_figure_of_the_ledger_is_shown_by_its_name(diary):
    text = text_of(diary)
    for table in ("slots", "groups"):
        for state, count in LEDGER[table].items():
            assert re.search(rf"\b{state} +{count}\b", text), state
    for name in ("admitted", "capacity", "lost", "late_results", "refused_results", "trained_groups"):
        assert re.search(rf"\b{name.replace('_', ' ')} +{LEDGER[name]}\b", text), name
    assert re.search(r"void: sandbox +3\b", text) and re.search(r"dropped: tokens +700\b", text)


def test_staleness_is_a_histogram_in_order_of_versions(diary):
    lines = [line for line in text_of(diary).splitlines() if "█" in line and "last" not in line]
    bars = {found[1]: len(found[3]) for line in lines if (found := re.search(r"\b(\d+) +(\d+) +(█+)", line))}
    assert bars["1"] == 16 and bars["0"] == 5 and bars["10"] == 3
    text = text_of(diary)
    assert text.index("\n") and re.search(r"0 +2 +█+.*\n.*1 +6 +█+.*\n.*10 +1 +█", text)


def test_the_head_says_where_the_run_is_and_what_it_waits_for(diary):
    head = "\n".join(text_of(diary).splitlines()[:5])
    assert "quickstart: running, figures of now" in head
    assert "stage rl (rl): step 3 of 10, 0:30 of work, about 1:10 left, version 3" in head
    assert "waits for an episode" in head


def test_workers_are_rows_of_a_table(diary):
    assert re.search(r"Workers.*\n.* running +restarts.*\n.*\b0 +5 +0\b.*\n.*\b1 +4 +1\b", text_of(diary))


def test_throughput_is_of_the_last_minute_and_of_the_whole_run(diary):
    text = text_of(diary)
    assert re.search(r"episodes/s +0\.1\b", text) and re.search(r"tokens/s +10\b", text)
    assert re.search(r"trainer busy +25%", text) and re.search(r"staleness +3 +▃▆█", text)


def test_how_old_the_figures_are_is_said_for_a_run_that_has_ended(diary):
    diary.finish()
    assert "quickstart: finished, figures are 1:05 old" in text_of(diary, 65)
    assert "finished, figures are 12 days old" in text_of(diary, 12 * 86_400)
    assert "waits for" not in text_of(diary)


def test_a_run_without_a_status_is_shown_from_its_diary(tmp_path):
    SyntheticRun(rl_steps=4).write(tmp_path)
    (tmp_path / "status.json").unlink()
    text = text_of(Diary(tmp_path))
    assert "stage rl (rl): ended" in text and "Slots" not in text and "after/new_bug T=1" in text


@pytest.mark.parametrize("sign", ["config.json", "lock"])
def test_a_run_that_has_only_begun_is_shown_as_starting(tmp_path, sign):
    (tmp_path / sign).write_text("{}")
    assert f"{tmp_path.name}: starting, no figures yet" in text_of(Diary(tmp_path)).replace("\n", "")


def test_names_that_somebody_made_up_cannot_move_the_cursor_or_become_markup(tmp_path):
    diary = Diary(tmp_path)
    diary.start(name=f"[red]{CONTROLS}", stage=f"[bold]{CONTROLS}")
    diary.end(diary.begin(), void=CONTROLS)
    diary.fault(error=f"[link=x]{CONTROLS}", plugin=CONTROLS)
    hostile = {"group": 1, "slot": 1, "task": f"[blink]{CONTROLS}{ATTACK}", "for_s": 1.0}
    diary.status(waits_for=CONTROLS, stage=f"[u]{CONTROLS}", running=[hostile], executor={f"a/b/{CONTROLS}": 1})
    picture = Watch(tmp_path, lambda: diary.now_s).look()
    console = make_console()
    with console.capture() as captured:
        console.print(drawn(picture))
    for text in (printed(picture), captured.get()):
        assert not set("\x1b\u202e\ud800") & set(text)
        assert "[red]red \\x1b[31m" in text and "[blink]red" in text.replace("\n", "")
        text.encode()


@pytest.mark.parametrize("width", [20, 40, 80, 250])
def test_no_line_is_wider_than_the_terminal(diary, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    console = make_console()
    with console.capture() as captured:
        console.print(drawn(Watch(diary.folder).look()))
    assert max(map(len, captured.get().splitlines())) <= width


def test_a_sparkline_starts_at_zero_and_has_a_block_for_each_share():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "██" and sparkline([0.0] * 3) == "▁▁▁" and sparkline([]) == ""
    assert len(sparkline(range(1000))) == 16


def test_numbers_are_short():
    assert [number(value) for value in (None, 0.0, 3, 0.12345, 1234.5, 2e6)] == [
        "-",
        "0",
        "3",
        "0.123",
        "1,234",
        "2,000,000",
    ]


# --- the command --------------------------------------------------------------------------------------------------


def run(*words):
    return CliRunner().invoke(group, ["top", *map(str, words)])


@pytest.mark.parametrize("words", [[], ["--once"]])
def test_where_there_is_no_terminal_it_prints_once(diary, words):
    done = run(diary.folder, *words)
    assert done.exit_code == 0 and done.output.startswith("quickstart: ") and "\x1b" not in done.output


def refused(capsys, *words):
    from composer_core.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["top", *map(str, words)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    return " ".join(said.err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing"], "found: no such folder fix: name a folder that"),
        (["pyproject.toml"], "found: a file fix: name a folder that"),
        (["."], "found: nothing of a run fix: name a folder that"),
        ([], "Missing argument"),
        (["--web"], "Missing argument"),
        (["--web", "runs/x"], "put RUN_DIR before --web, or write --web=PORT"),
        (["--web=70000", "."], "expected a port"),
        ([".", "--wbe"], "No such option"),
    ],
)
def test_words_that_mean_nothing_are_refused_with_the_fix(tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert said in refused(capsys, *words)


def test_printing_and_serving_are_not_asked_for_at_once(diary, capsys):
    assert "--once prints, --web serves: choose one" in refused(capsys, diary.folder, "--once", "--web")


def in_terminal(folder, until, then):
    """Run it in a terminal of 100 columns; once `until` is on it, do `then(process)`. Gives (exit code, all of it)."""
    control, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "LINES": "50", "TERM": "xterm"}
    heard = ["env", "--default-signal=INT"]  # a shell that runs tests in the background has them ignore it
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    process = subprocess.Popen([*heard, *TOP, folder], **streams, env=environment)
    os.close(terminal)
    seen, done = b"", False
    deadline_s = time.monotonic() + 60
    try:
        while time.monotonic() < deadline_s:
            try:
                piece = os.read(control, 65536)
            except OSError:  # the other end is closed: it has ended
                break
            seen += piece
            if not done and until in seen:
                done = True
                then(process)
        return process.wait(10), seen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(control)


def test_in_a_terminal_it_draws_on_and_stays_as_text_when_the_run_ends(diary):
    diary.now_s = time.time()

    def then(process):
        diary.status(waits_for="something else")
        diary.finish()

    code, seen = in_terminal(diary.folder, b"waits for an episode", then)
    assert code == 0 and "\x1b[?1049h" in seen, "the terminal's other screen"
    last = seen.rpartition("\x1b[?1049l")[2]
    assert "finished" in last and "Slots" in last


def test_ctrl_c_leaves_without_a_complaint(diary):
    diary.now_s = time.time()
    diary.status()
    code, seen = in_terminal(diary.folder, b"waits for an episode", lambda process: process.send_signal(signal.SIGINT))
    assert code == 0 and "Traceback" not in seen and "interrupted" not in seen


def test_a_real_run_is_shown_while_it_goes_on_after_it_was_killed_and_when_it_has_finished(tmp_path):
    """The loop's own status.json and events.jsonl, whatever wrote them."""
    folder = tmp_path / "run"
    train = [*TOP[:-1], "train"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    settings = ["--set", f"stages.rl.steps={STEPS}", "--run-dir", folder]
    training = subprocess.Popen([*train, ROOT / "examples/fakes/run.toml", *settings], **quiet)
    try:
        deadline_s = time.monotonic() + 60
        while not (folder / "status.json").exists() and training.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        watch = Watch(folder)
        picture = watch.look()
        assert picture["state"]["word"] == "running"
        counts, slots = picture["status"]["counts"], picture["status"]["tables"]["slots"]
        assert counts["admitted"] >= 1 and set(slots) == {"pending", "running", "valid", "void"}
    finally:
        training.kill()
        training.wait()
    killed = Watch(folder, lambda: time.time() + 60).look()
    assert killed["state"]["word"] == "killed" and killed["status"]["tables"]["slots"]
    resumed = subprocess.run([*train, "--resume", folder], timeout=120, check=False, **quiet)
    assert resumed.returncode == 0
    finished = watch.look(60.0)
    assert finished["state"]["word"] == "finished" and finished["starts"] == 2
    assert finished["status"]["counts"]["trained_groups"] == STEPS * 3 and finished["problems"] == []
