"""Run files are what the findings say of them, and one finding in miniature goes from nothing to its page."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import findings
import pytest
from study import results, running
from study.findings import FINDINGS
from study.recipes import HERE, RECIPES, chain
from study.running import OtherRunError, Runs

from composer_core.config import load
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
    for name in ("base-quarter", "base", "base-four"):
        stages = {choice.stage.name: choice.stage.steps for choice in config(name).stages}
        steps[name] = (stages["copy"], stages["pretrain"], stages["restoring"])
    copy, pretrain, restoring = steps["base"]
    assert steps["base-quarter"] == (copy, pretrain / 4, restoring / 4)
    assert steps["base-four"] == (copy, pretrain * 4, restoring * 4)


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
    alone = config("parallel-effort-alone")
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
    assert "Every arm has 1 of three seeds." in section
    assert "nothing of this is a finding" in done.stdout


@pytest.fixture
def trained(monkeypatch):
    """Stands in for training: what each run was asked with, by the name of its folder; it ends at once, finished."""
    asked = {}

    def train(words, check, stdout, stderr):
        folder = Path(words[words.index("--run-dir") + 1])
        before = next((Path(word.partition('"')[2]).parent for word in words if word.startswith("model.path=")), None)
        assert before is None or (before / "summary.json").exists(), f"{folder} began before {before} was finished"
        folder.mkdir()
        (folder / "summary.json").write_text("{}")
        asked[folder.name] = words
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(running.subprocess, "run", train)
    monkeypatch.setattr(running, "revision", lambda: "abc")
    return asked


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_go_side_by_side_with_a_core_each_and_those_whose_times_count_come_after(
    monkeypatch, tmp_path, trained, jobs
):
    read = []

    def measure(key, arm, seed, runs, command):
        read.append((key, arm, seed, list(trained)))
        return results.Result(key, arm, seed, "abc", "", command, "", {})

    monkeypatch.setattr(findings.results, "measure", measure)
    monkeypatch.setattr(findings.metadata, "entry_points", lambda **names: ["chores"])
    monkeypatch.setattr(findings, "write", lambda found, out: None)
    folders = [f"--{name}={tmp_path / name}" for name in ("runs", "results", "out")]
    assert findings.main(["parallel", "evidence", "--seeds", "1", "2", f"--jobs={jobs}", *folders]) == 0
    arms = [("parallel", "none"), ("parallel", "effort"), ("evidence", "none"), ("evidence", "evidence")]
    assert [one[:3] for one in read] == [(*arm, seed) for seed in (1, 2) for arm in arms]
    main = ("base", "manners", "parallel-none", "parallel-effort", "evidence-none", "evidence-reward")
    assert set(read[0][3]) == {f"{name}-1" for name in main}, "the runs of a seed, none of those that must be alone"
    assert all(("threads=1" in words) == (jobs > 1) for words in trained.values())
    assert findings.main(["parallel", "--seeds", "1", *folders]) == 0
    assert len(read) == 8, "what has a result is not measured again"


def test_the_first_run_that_fails_ends_it_and_shows_the_end_of_its_log(monkeypatch, tmp_path, capsys, trained):
    succeed = running.subprocess.run

    def train(words, check, stdout, stderr):
        if "manners" not in words[4]:
            return succeed(words, check, stdout, stderr)
        stdout.write("the disk is full\n")
        return subprocess.CompletedProcess(words, 3)

    monkeypatch.setattr(running.subprocess, "run", train)
    monkeypatch.setattr(findings.metadata, "entry_points", lambda **names: ["chores"])
    assert findings.main(["effort", f"--runs={tmp_path / 'runs'}", f"--results={tmp_path / 'results'}"]) == 1
    error = capsys.readouterr().err
    assert "manners-1 ended with exit code 3" in error
    assert "the disk is full" in error
    assert set(trained) == {"base-1"}


def test_a_run_is_made_once_and_one_made_of_something_else_is_not_taken_for_it(monkeypatch, tmp_path, trained):
    for _ in range(2):
        Runs(tmp_path, everywhere=["threads=1"]).folders("habits", 1)
    assert [Path(words[4]).name for words in trained.values()] == ["base.toml", "habits.toml"]
    assert f'model.path="{tmp_path / "base-1/model"}"' in trained["habits-1"]
    monkeypatch.setattr(running, "revision", lambda: "def")
    assert Runs(tmp_path).revision("habits", 1) == "abc"
    note = tmp_path / "base-1.json"
    note.write_text(note.read_text().replace("seed=1", "seed=1.0"))
    with pytest.raises(OtherRunError, match="base-1 was made of another settings; fix: move it away"):
        Runs(tmp_path).folders("habits", 1)
    note.unlink()
    shutil.rmtree(tmp_path / "base-1")
    with pytest.raises(OtherRunError, match="habits-1 was made of another run before"):
        Runs(tmp_path).folders("habits", 1)  # base is made anew, by another revision


def test_what_is_set_to_try_out_holds_in_every_run_that_an_arm_is_read_from(tmp_path, trained):
    for name in ("parallel-none", "parallel-none-alone"):
        Runs(tmp_path, settings=["limits.turns=9"]).folders(name, 1)
    asked = {name: "limits.turns=9" in words for name, words in trained.items()}
    assert asked == {"base-1": False, "manners-1": False, "parallel-none-1": True, "parallel-none-alone-1": True}
