"""The main job, very short, in containers and in virtual machines: it learns the same bytes as in namespaces.

So what a policy sees of a backend (words, exit codes, order of files) is the same in all of them, and so is its reward.
"""

import json
from contextlib import nullcontext

import pytest

from composer_core.tracking import read_events
from composer_testing.engines import own_engine

RUN = "examples/quickstart/run.toml"
SHORT = [
    "deterministic=true",
    "threads=1",
    'tasks.modules=["numbers_"]',
    "stages.copy.steps=2",
    "stages.copy.batch_windows=2",
    "stages.pretrain.steps=2",
    "stages.pretrain.batch_windows=2",
    "stages.restoring.steps=2",
    "stages.restoring.batch_windows=2",
    "stages.sft.episodes=4",
    "stages.sft.steps=2",
    "stages.sft.batch_episodes=2",
    "stages.rl.steps=1",
    "stages.rl.groups_per_step=1",
    "stages.rl.group_size=2",
    "stages.rl.evaluate_every=0",
    'evaluations=[{name="main",split="new_bug_dev",tasks=2,attempts=1,when=["after"]}]',
    'samplers={demonstrator={use="drills/demonstrator"}}',
]
BACKENDS = {"docker": "docker/docker", "microvm": "microvm/qemu"}


@pytest.fixture(scope="module")
def train(tmp_path_factory, composer_run):
    def run(plugins=(), sandbox=(), **env):
        folder = tmp_path_factory.mktemp("short") / "run"
        sets = [part for text in SHORT for part in ("--set", text)]
        process = composer_run(*plugins, "train", RUN, "--run-dir", folder, *sets, *sandbox, timeout_s=600, **env)
        assert process.returncode == 0, process.stderr[-3000:]
        return folder

    return run


@pytest.fixture(scope="module")
def here(train):
    return train()


def learned(run):
    """The weights' digest, and what every episode was worth."""
    results = [event["result"] for event in read_events(run) if event["event"] == "EpisodeEnded"]
    worth = sorted((*map(str, result["key"].values()), result["verdict"]["outcome"]) for result in results)
    return json.loads((run / "commit.json").read_text())["weights"]["checksum"], worth


@pytest.mark.parametrize("plugin", BACKENDS)
def test_it_learns_the_same_in_every_kind_of_sandbox(plugin, train, here):
    with own_engine() if plugin == "docker" else nullcontext("") as engine:
        sandbox = ("--set", f"sandbox={{use='{BACKENDS[plugin]}'}}")
        there = train(("--plugins", plugin), sandbox, DOCKER_HOST=engine)
    assert learned(there) == learned(here)
    outcomes = {worth[-1] for worth in learned(here)[1]}
    assert "void" not in outcomes and outcomes > {"ungraded"}, "nothing was graded"
