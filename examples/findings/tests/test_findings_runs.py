"""Run files are what the findings say of them, and one finding in miniature goes from nothing to its page."""

import os
import subprocess
import sys

import findings
import pytest
from study.findings import FINDINGS
from study.recipes import HERE, RECIPES, chain

from composer_core.config import load

SHARED = ("tasks", "limits", "tools", "stages", "evaluations", "renderer", "seed")


def config(name):
    return load(HERE / RECIPES[name].file, RECIPES[name].settings)


@pytest.mark.parametrize("key", [key for key in FINDINGS if key not in ("summary", "pretraining")])
def test_arms_of_a_finding_differ_in_what_they_are_named_for_alone(key):
    configs = [config(names[0]) for names in FINDINGS[key].arms.values()]
    assert len({chain(names[0])[-2] for names in FINDINGS[key].arms.values()}) == 1
    for one in configs:
        assert [getattr(one, name) for name in SHARED] == [getattr(configs[0], name) for name in SHARED]
        if key != "precision":
            assert (one.model, one.sampler, one.trainer) == (configs[0].model, configs[0].sampler, configs[0].trainer)
        else:
            assert one.rewards == configs[0].rewards


def test_effort_has_three_arms_and_they_differ_in_one_reward():
    rewards = {arm: config(names[0]).rewards for arm, names in FINDINGS["effort"].arms.items()}
    assert rewards["none"] == rewards["concave"][:2] == rewards["linear"][:2]
    concave, linear = rewards["concave"][2], rewards["linear"][2]
    assert (linear.settings["q"], concave.settings["q"] > 1) == (0.0, True)
    assert {**linear.settings, "q": 2.0} == concave.settings
    assert linear.weight == concave.weight


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


def test_the_loss_of_finding_5_is_of_traces_seen_for_the_first_time():
    (imitation,) = [choice.stage for choice in config("habits").stages]
    assert imitation.steps * imitation.batch_episodes <= imitation.episodes


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


@pytest.mark.parametrize(("jobs", "everywhere"), [(1, ()), (2, ("threads=1",))])
def test_seeds_that_run_at_a_time_have_a_core_each(monkeypatch, tmp_path, jobs, everywhere):
    asked = []
    monkeypatch.setattr(findings, "one", lambda key, seed, runs, options: asked.append((seed, key, runs.everywhere)))
    monkeypatch.setattr(findings, "write", lambda found, out: None)
    words = ["effort", "scaling", "--seeds", "1", "2", "--jobs", str(jobs), "--out", str(tmp_path)]
    monkeypatch.setattr(findings.metadata, "entry_points", lambda **names: ["chores"])
    assert findings.main(words) == 0
    assert sorted(asked) == [(seed, key, everywhere) for seed in (1, 2) for key in ("effort", "scaling")]
