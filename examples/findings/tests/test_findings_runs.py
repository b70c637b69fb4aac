"""Run files are what the findings say of them, and one finding in miniature goes from nothing to its page."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import findings
import pytest
from attrs import evolve
from study import recipes, results, running
from study.findings import FINDINGS
from study.recipes import HERE, RECIPES, chain
from study.running import Runs

from composer_core.config import load
from composer_core.errors import ConfigError, PluginError
from composer_core.rundir import RunDir
from composer_core.types import Limits
from composer_plugin_behavior.config import EffortConfig
from composer_plugin_behavior.effort import at_limits, cost

SHARED = ("tasks", "limits", "tools", "stages", "evaluations", "renderer", "seed")


def config(name):
    return load(HERE / RECIPES[name].file, RECIPES[name].settings)


@pytest.mark.parametrize("key", [key for key in FINDINGS if key not in ("summary", "pretraining")])
def test_arms_of_a_finding_differ_in_what_they_are_named_for_alone(key):
    configs = [config(names[0]) for names in FINDINGS[key].arms.values()]
    assert len({chain(names[0])[-2] for names in FINDINGS[key].arms.values()}) == 1
    for one in configs:
        assert [getattr(one, name) for name in SHARED] == [getattr(configs[0], name) for name in SHARED]
        assert one.trainer == configs[0].trainer
        if key != "precision":
            assert (one.model, one.sampler) == (configs[0].model, configs[0].sampler)
        else:
            assert one.rewards == configs[0].rewards


def test_effort_has_three_arms_and_they_differ_in_one_reward():
    rewards = {arm: config(names[0]).rewards for arm, names in FINDINGS["effort"].arms.items()}
    assert rewards["none"] == rewards["concave"][:2] == rewards["linear"][:2]
    concave, linear = rewards["concave"][2], rewards["linear"][2]
    assert {**linear.settings, "q": 4.0} == {**concave.settings, "q": 4.0}
    assert linear.settings["q"] == 0.0


def test_a_call_costs_as_much_in_the_mean_whether_it_is_priced_linearly_or_not():
    """Over an easy task's usual five calls and a hard one's seven; only the concave price falls."""
    price = {}
    for arm in ("linear", "concave"):
        chosen = config(f"effort-{arm}")
        (reward,) = [one for one in chosen.rewards if one.use == "behavior/effort"]
        settings = EffortConfig(**reward.settings)
        most = cost(at_limits(Limits(**chosen.limits), settings), settings.k, settings.q)
        spent = [cost(41 * calls, settings.k, settings.q) / most for calls in (5, 6, 7, 8)]
        price[arm] = [reward.weight * (spent[1] - spent[0]), reward.weight * (spent[3] - spent[2])]
    assert price["linear"][0] == pytest.approx(price["linear"][1])
    assert price["concave"][0] > 1.5 * price["concave"][1]
    assert sum(price["concave"]) == pytest.approx(sum(price["linear"]), rel=0.1)


def test_amounts_of_pretraining_are_a_quarter_one_and_four_of_the_text():
    steps = {}
    for name in ("base-quarter", "base-one", "base"):
        stages = {choice.stage.name: choice.stage.steps for choice in config(name).stages}
        steps[name] = (stages["copy"], stages["pretrain"], stages["restoring"])
    copy, pretrain, restoring = steps["base-one"]
    assert steps["base-quarter"] == (copy, pretrain / 4, restoring / 4)
    assert steps["base"] == (copy, pretrain * 4, restoring * 4)
    assert f" {pretrain + restoring} steps" in FINDINGS["pretraining"].ran
    chains = [chain(run) for (run,) in FINDINGS["pretraining"].arms.values()]
    assert [one[0] for one in chains] == [*steps]
    imitations = [config(one[1]) for one in chains]
    assert all(evolve(one, model=imitations[0].model) == imitations[0] for one in imitations)


def test_a_digest_is_of_settings_and_of_every_run_before_and_not_of_comments(tmp_path, monkeypatch):
    shutil.copytree(HERE, tmp_path / "copy", ignore=lambda folder, names: [one for one in names if "." not in one])
    monkeypatch.setattr(recipes, "HERE", tmp_path / "copy")
    names = chain("effort-none")
    runs, file = Runs(tmp_path), tmp_path / "copy/base.toml"
    first = runs.expected(names)
    file.write_text("# a remark\n" + file.read_text())
    assert runs.expected(names) == first
    assert runs.expected(chain("effort-linear")) != first
    assert Runs(tmp_path, settings=["limits.turns=9"]).expected(names) != first
    assert Runs(tmp_path, quick=True).expected(names) != first
    file.write_text(file.read_text().replace("steps = 700", "steps = 701"))
    assert runs.expected(names) != first
    assert runs.expected(["self"]) == ""


def test_what_runs_were_made_of_does_not_change_with_their_files(tmp_path, monkeypatch, trained):
    shutil.copytree(HERE, tmp_path / "copy", ignore=lambda folder, names: [one for one in names if "." not in one])
    monkeypatch.setattr(recipes, "HERE", tmp_path / "copy")
    runs, names, file = Runs(tmp_path / "runs"), chain("effort-none"), tmp_path / "copy/effort.toml"
    runs.make(["effort-none"], 1, 1)
    assert (made := runs.digest(names, 1)) == runs.expected(names)
    file.write_text("# a remark\n" + file.read_text())
    assert runs.make(["effort-none"], 1, 1) == [], "a remark makes no other run"
    file.write_text(file.read_text().replace("\nsteps = ", "\nsteps = 1"))
    assert runs.digest(names, 1) == made != runs.expected(names)


def test_who_interrupts_a_quick_run_is_not_told_that_it_is_resumed(monkeypatch, capsys):
    monkeypatch.setattr(findings.metadata, "entry_points", lambda **names: ["chores"])
    monkeypatch.setattr(findings, "measure_quickly", lambda _: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit):
        findings.main(["pretraining", "--quick"])
    assert capsys.readouterr().err == "interrupted; nothing was kept\n"


def test_what_is_reported_is_held_out():
    for recipe in RECIPES.values():
        assert {one.split for one in load(HERE / recipe.file, recipe.settings).evaluations} <= {"held_out"}


def test_the_loss_of_finding_5_is_of_held_out_tasks_by_the_worker_that_was_imitated():
    (imitated,) = [config("habits").samplers[choice.stage.sampler] for choice in config("habits").stages]
    for name in ("pretraining-quarter", "pretraining-one", "pretraining-four"):
        (demonstrated,) = [one for one in config(name).evaluations if one.name == "demonstrated"]
        assert config(name).samplers[demonstrated.sampler] == imitated
        assert (demonstrated.split, demonstrated.when) == ("held_out", ("before",))


def test_arms_of_finding_7_differ_in_the_experts_of_the_trainer_alone():
    both, sampler = config("precision-both"), config("precision-sampler")
    assert both.trainer == sampler.trainer
    assert {**both.model.settings, "experts": {"kernel": "chores/bf16"}} == sampler.model.settings
    assert both.sampler.settings == sampler.sampler.settings


def test_timing_runs_train_nothing_and_make_one_episode_at_a_time():
    alone = config("parallel-effort-alone-c")
    assert not alone.stages
    assert alone.executor.settings["max_concurrent"] == 1


def test_a_finding_in_miniature_goes_from_nothing_to_its_page(tmp_path):
    site = tmp_path / "site"
    install = ["-m", "pip", "-q", "install", "--no-deps", "--no-build-isolation", "--no-index", "--target", site, HERE]
    asked = [HERE / "findings.py", "evidence", "--quick"]
    for words in (install, asked):
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    section = done.stdout.partition("## 4. ")[2].partition("## 5. ")[0]
    assert "| reads and searches before the first edit |" in section
    assert "Not measured yet" not in section
    assert "Of three seeds 1 has every arm." in section
    assert "What we think of it" not in section, "of figures that these are not"
    assert "nothing of this is a finding" in done.stdout.partition("## 4. ")[0]
    assert done.stdout.count("## ") == 1, "of what was asked for alone"


class Trained:
    """Stands in for processes that train: ends when it is asked the second time, finished or with an exit code."""

    def __init__(self, folder):
        self.folder, self.words, self.asked, self.stopped = folder, [], 0, False

    @property
    def returncode(self):
        return 3 if "manners" in self.folder.name and (self.folder.parent / "disk is full").exists() else 0

    def poll(self):
        self.asked += 1
        if self.asked < 2:
            return None
        if not self.returncode:
            (self.folder / "summary.json").write_text("{}")
        return self.returncode

    def terminate(self):
        self.stopped = True

    def wait(self):
        assert self.stopped


@pytest.fixture
def trained(monkeypatch):
    """Name of a run folder -> the process that stands in for training it; how many were under way when it began."""
    made = {}

    def start(words, stdout, stderr, start_new_session):
        folder = Path(words[words.index("--run-dir") + 1])
        before = next((Path(word.partition('"')[2]).parent for word in words if word.startswith("model.path=")), None)
        assert before is None or (before / "summary.json").exists(), f"{folder} began before {before} was finished"
        folder.mkdir(exist_ok=True)
        stdout.write(b"the disk is full\n")
        process = made[folder.name] = Trained(folder)
        process.words, process.beside = words, sum(one.asked < 2 for one in made.values()) - 1
        return process

    monkeypatch.setattr(running.subprocess, "Popen", start)
    monkeypatch.setattr(running.time, "sleep", lambda _: None)
    monkeypatch.setattr(
        running, "load_run", lambda path, sets, _: (load(path, sets), None)
    )  # the plugin is not installed here
    monkeypatch.setattr(running, "revision", lambda: "abc")
    monkeypatch.setattr(findings.metadata, "entry_points", lambda **names: ["chores"])
    return made


@pytest.fixture
def measured(monkeypatch, tmp_path, trained):
    """What is measured, and of which runs; `ask(words)` is the command with folders of its own."""
    read = []

    def measure(key, arm, seed, runs, command):
        read.append((key, arm, seed))
        names = results.runs_of(key, arm)
        made = runs.digest(names, seed)
        return results.Result(key, arm, seed, "abc", "", command, "", dict.fromkeys(names, 0.0), made)

    monkeypatch.setattr(findings.results, "measure", measure)
    monkeypatch.setattr(findings, "write", lambda found, out: None)
    return read


def ask(tmp_path, *words):
    return findings.main([*words, *(f"--{name}={tmp_path / name}" for name in ("runs", "results", "out"))])


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_runs_go_side_by_side_and_those_whose_times_count_come_after_alone(tmp_path, trained, measured, jobs, capsys):
    assert ask(tmp_path, "parallel", "evidence", "--seeds", "1", "2", f"--jobs={jobs}") == 0
    arms = [("parallel", "none"), ("parallel", "effort"), ("evidence", "none"), ("evidence", "evidence")]
    assert measured == [(*arm, seed) for seed in (1, 2) for arm in arms]
    alone = [f"parallel-{arm}-alone-{turn}" for turn in "abc" for arm in ("none", "effort")]
    of_parallel = {"manners-parallel", "parallel-none", "parallel-effort"}
    side_by_side = {"base", "manners", "evidence-none", "evidence-reward"} | of_parallel
    assert set(trained) == {f"{name}-{seed}" for name in {*alone, *side_by_side} for seed in (1, 2)}
    assert max(process.beside for process in trained.values()) == jobs - 1
    assert all(trained[f"{name}-1"].beside == 0 for name in alone)
    assert [name.rpartition("-")[0] for name in [*trained][7:13]] == alone, "arms take turns"
    assert all("threads=1" in process.words for process in trained.values())
    assert ask(tmp_path, "parallel", "--seeds", "1") == 0
    assert len(measured) == 8, "what has a result is not measured again"
    said = capsys.readouterr().out
    assert "seed 1: nothing to measure" in said
    assert "--results, --runs and --out of new folders" in said


def test_after_a_failed_run_all_is_made_that_does_not_go_on_from_it(tmp_path, trained, measured, capsys):
    (tmp_path / "runs").mkdir()
    full = tmp_path / "runs/disk is full"
    full.touch()
    asked = ("parallel", "scaling", "--seeds", "1")
    assert ask(tmp_path, *asked) == 1
    assert "manners-parallel-1: exit code 3; the disk is full" in capsys.readouterr().err
    assert set(trained) == {"base-1", "manners-parallel-1", "habits-1", "scaling-1"}
    assert measured == [("scaling", "trained", 1)]
    full.unlink()
    assert ask(tmp_path, *asked) == 0
    assert "--or-resume" in trained["manners-parallel-1"].words
    assert measured[1:] == [("parallel", "none", 1), ("parallel", "effort", 1)]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_runs_under_way(monkeypatch, tmp_path, trained, measured, capsys, sent, code):
    before = signal.getsignal(signal.SIGTERM)
    interrupting = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    monkeypatch.setattr(running.time, "sleep", lambda _: signal.raise_signal(sent))
    try:
        found = ask(tmp_path, "pretraining", "--jobs", "2")
    except SystemExit as error:
        found = error.code
    finally:
        signal.signal(signal.SIGINT, interrupting)
    assert found == code
    assert {name: process.stopped for name, process in trained.items()} == {"base-1": True, "base-one-1": True}
    assert signal.getsignal(signal.SIGTERM) is before
    assert "goes on from what is there" in capsys.readouterr().err


def test_one_at_a_time_makes_the_runs_of_a_folder(tmp_path, trained, measured, capsys):
    with RunDir(tmp_path / "runs").lock():
        assert ask(tmp_path, "effort") == 2
    assert "another process" in capsys.readouterr().err
    assert not trained


@pytest.mark.parametrize(
    ("words", "said"),
    [(["efort"], "did you mean 'effort'?"), (["--jobs", "0"], "at least 1"), (["--seeds", "-1"], "at least 1")],
)
def test_what_cannot_be_asked_is_refused(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        findings.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_nothing_is_written_over_by_a_try_out_or_a_page_of_nothing(tmp_path, trained, capsys):
    assert findings.main(["effort", "--set", "limits.turns=9"]) == 2
    assert "give it --out, --results, --runs of its own" in capsys.readouterr().err
    assert findings.main(["--page", "--set", "limits.turns=9", f"--results={tmp_path}"]) == 2
    assert "give it --out, --results of its own" in capsys.readouterr().err
    assert findings.main(["--page", f"--results={tmp_path / 'none'}"]) == 2
    assert "the page would be empty" in capsys.readouterr().err
    committed = os.path.relpath(results.FOLDER)
    own = [f"--{name}={tmp_path}" for name in ("runs", "out")]
    assert findings.main(["effort", "--set", "limits.turns=9", f"--results={committed}", *own]) == 2
    assert "give it --out, --results, --runs of its own" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--page", "effort"], "--page makes no use of findings"),
        (["--page", "--runs", "build", "--quick"], "--page makes no use of quick"),
        (["--quick", "--out", "build"], "--quick makes no use of out"),
    ],
)
def test_what_would_be_ignored_is_refused(trained, capsys, words, said):
    assert findings.main(words) == 2
    assert said in capsys.readouterr().err
    assert not trained


def test_a_task_set_that_is_not_installed_and_a_plugin_that_is_not_are_named(monkeypatch, tmp_path, trained, capsys):
    def missing(*_):
        raise PluginError("no plugin is called 'behavior'")

    monkeypatch.setattr(running, "load_run", missing)
    assert ask(tmp_path, "effort") == 2
    assert "behavior" in capsys.readouterr().err
    monkeypatch.setattr(findings.metadata, "entry_points", lambda **names: [])
    assert ask(tmp_path, "effort") == 2
    assert "pip install ./examples/findings" in capsys.readouterr().err


def test_an_arm_that_would_not_be_measured_is_told_before_anything_begins(tmp_path, trained, capsys):
    assert ask(tmp_path, "effort", "--set", 'rewards=[{use="hidden-tests/hidden-tests"}]') == 2
    assert "would not be measured" in capsys.readouterr().err
    assert not trained


def test_a_setting_that_does_not_fit_is_told_before_anything_begins(tmp_path, trained, capsys):
    assert ask(tmp_path, "effort", "--set", "seeed=9") == 2
    assert "did you mean 'seed'?" in capsys.readouterr().err
    assert not trained


def test_the_sixth_asked_for_by_name_needs_its_runs(tmp_path, trained, capsys):
    assert ask(tmp_path, "summary", f"--long-horizon={tmp_path / 'none'}") == 2
    assert "long_horizon.py" in capsys.readouterr().err


def test_a_run_is_made_once_and_one_made_of_something_else_is_not_taken_for_it(monkeypatch, tmp_path, trained):
    for _ in range(2):
        assert Runs(tmp_path).make(["habits"], 1, 1) == []
    assert [Path(process.words[4]).name for process in trained.values()] == ["base.toml", "habits.toml"]
    assert f'model.path="{tmp_path / "base-1/model"}"' in trained["habits-1"].words
    monkeypatch.setattr(running, "revision", lambda: "def")
    assert Runs(tmp_path).revision(["base", "habits"], 1) == "abc"
    Runs(tmp_path).make(["scaling"], 1, 1)
    assert Runs(tmp_path).revision(chain("scaling"), 1) == "abc, def"
    note = tmp_path / "base-1.json"
    note.write_text(note.read_text().replace('"settings": []', '"settings": ["threads=2"]'))
    with pytest.raises(ConfigError, match=r"another settings\n.*base-1\n.*move it away"):
        Runs(tmp_path).make(["habits"], 1, 1)
    note.write_text("{")
    with pytest.raises(ConfigError, match=r"cannot be read.*\n.*base-1\.json"):
        Runs(tmp_path).make(["habits"], 1, 1)
    note.unlink()
    with pytest.raises(ConfigError, match=r"not known\n.*base-1\n.*base-1\.json"):
        Runs(tmp_path).make(["habits"], 1, 1)
    shutil.rmtree(tmp_path / "base-1")
    with pytest.raises(ConfigError, match=r"another run before\n.*habits-1"):
        Runs(tmp_path).make(["habits"], 1, 1)  # base is to be made anew, by another revision


def test_what_is_set_to_try_out_holds_in_every_run_that_an_arm_is_read_from(tmp_path, trained):
    Runs(tmp_path, settings=["limits.turns=9"]).make(["parallel-none-alone-a"], 1, 1)
    asked = {name: "limits.turns=9" in process.words for name, process in trained.items()}
    shared, own = ("base-1", "manners-parallel-1"), ("parallel-none-1", "parallel-none-alone-a-1")
    assert asked == dict.fromkeys(shared, False) | dict.fromkeys(own, True)


def test_what_was_found_by_a_try_out_is_read_with_what_was_set_alone(tmp_path, measured, capsys):
    asked = ("effort", "--seeds", "1", "--set", "limits.turns=9")
    assert ask(tmp_path, *asked) == 0
    assert ask(tmp_path, *asked) == 0
    pages = [
        findings.main(["--page", f"--results={tmp_path / 'results'}", f"--out={tmp_path}", *words])
        for words in (["--set", "limits.turns=9"], ["--set", "limits.turns=6"], [])
    ]
    assert pages == [0, 2, 2]
    assert "effort-none-1.json (of other settings)" in capsys.readouterr().err
    assert ask(tmp_path, "effort", "--seeds", "1", "--set", "limits.turns=6") == 2
