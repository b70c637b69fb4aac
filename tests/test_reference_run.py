"""The reference pipeline from its own run file, small and whole: real virtual machines, Ray, MXFP8 experts, recaps, all
rewards. Its controller is killed once after the first step of reinforcement learning, and the run is resumed.
"""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from composer_core import BuildContext
from composer_core.tensors import one_thread, to_tensor, token_logprobs
from composer_core.traces import decode
from composer_core.tracking import read_events
from composer_plugin_hf.policy import HFPolicy
from composer_plugin_mxfp8 import MXFP8Config
from composer_plugin_mxfp8.factory import build

ROOT = Path(__file__).resolve().parent.parent
FILE = "reference/composer.toml"
SAID = tomllib.loads((ROOT / FILE).read_text())
REWARDS = [*(reward["use"] for reward in SAID["rewards"]), "fakes/every_other"]
"""Random weights solve nothing, and to a group in which all fail the file's own rewards give the same."""
SMALL = [
    "threads=1",
    f"plugins={[*SAID['plugins'], 'fakes']}",
    f"rewards=[{', '.join(f'{{use={use!r}}}' for use in REWARDS)}]",
    'tasks={use="drills/drills",modules=["numbers_"],restoring_variants=1}',
    "limits.tokens=320",  # a turn, its recap, and what follows on that
    "stages.copy.steps=1",
    "stages.pretrain.steps=1",
    "stages.restoring.steps=1",
    "stages.sft.episodes=2",
    "stages.sft.steps=1",
    "stages.sft.batch_episodes=2",
    "stages.rl.steps=2",
    "stages.rl.groups_per_step=2",
    "stages.rl.group_size=2",
    "evaluations=[]",
    "executor.start_timeout_s=600",
]
RL = 4
"""Place of the stage in the file, and the version that it begins with."""
BAR = 1e-5
"""How far apart two forward passes in MXFP8 put half of the tokens at most, in nats."""


@pytest.fixture(scope="module")
def run(tmp_path_factory, composer_run):
    """The folder of a run that was killed after its first step of rl and resumed, with the store of its weights."""
    folder = tmp_path_factory.mktemp("reference")
    run, mark = folder / "run", f"composer-test={folder}"
    sets = [word for text in [*SMALL, f"executor.weights_store={folder}/store"] for word in ("--set", text)]
    command = [sys.executable, "-m", "composer_core.cli", "train", FILE, "--run-dir", str(run)]
    env = {"COMPOSER_TEST": mark}
    with (folder / "said").open("w") as said:
        process = subprocess.Popen([*command, *sets], cwd=ROOT, env={**os.environ, **env}, stderr=said)
        try:
            wait_for(lambda: committed(run) == (RL, 1), process, 600)
        finally:
            process.kill()
            process.wait(30)
    assert not (run / "summary.json").exists(), "it was killed before its end"
    wait_for(lambda: not processes_of(mark), None, 60)
    resumed = composer_run("train", "--resume", run, timeout_s=600, **env)
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    wait_for(lambda: not processes_of(mark), None, 60)
    return run


def committed(run):
    """Stage and step of the last commit."""
    try:
        commit = json.loads((run / "commit.json").read_text())
    except OSError:
        return None
    return commit["stage"], commit["step"]


def wait_for(condition, process, seconds):
    until_s = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, "the run has ended"
        assert time.monotonic() < until_s
        time.sleep(0.05)


AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Of Ray itself: they end by themselves, a minute after what they served was killed."""


def processes_of(mark):
    """Ids of all processes that were started with the mark, Ray's agents apart."""

    def marked(pid):
        try:
            name = Path(f"/proc/{pid}/cmdline").read_text()
            return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes() and not name.startswith(AGENTS)
        except OSError:  # it has ended
            return False

    return [pid for pid in os.listdir("/proc") if pid.isdigit() and marked(pid)]


@pytest.fixture(scope="module")
def events(run):
    return list(read_events(run))


@pytest.fixture(scope="module")
def steps(events):
    """Figures of the steps of rl."""
    return [event for event in events if event["event"] == "StepEnded" and event["stage"] == "rl"]


@pytest.fixture(scope="module")
def summary(run):
    return json.loads((run / "summary.json").read_text())


def test_resumed_after_its_first_step_it_makes_the_second_and_no_other(steps, summary):
    assert [step["step"] for step in steps] == [1, 2]
    assert summary["resumed_from"] > 0
    assert summary["void_share"] == 0


def test_both_steps_train_on_rewards_and_feedback_and_publish_what_came_of_it(events, steps):
    for step in steps:
        assert step["metrics"]["flat_share"] == 0, "members of no group are worth the same"
        assert step["metrics"]["trained_tokens"] > 0
        assert step["metrics"]["feedback_turns"] > 0
        assert step["metrics"]["grad_norm"] > 0
        assert step["metrics"]["skipped"] == 0
    published = {one["weights"]["version"]: one["weights"] for one in events if one["event"] == "WeightsPublished"}
    assert sorted(published) == list(range(RL + 3)), "the first weights, then one version for each stage and step"
    assert len({weights["checksum"] for weights in published.values()}) == len(published)


@pytest.fixture(scope="module")
def traces(run):
    """Of rl, by the id of the episode."""
    return {path.stem: decode(path.read_bytes()) for path in run.glob("traces/rl-*.trace")}


def policy(run, version, kernel):
    """What was published as a version, with a kernel for its experts; None are plain ones."""
    made = HFPolicy(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(run / "model")), kernel)
    made.load_state_dict(load_file(run / f"weights/{version}.safetensors"))
    return made.eval()


def mxfp8(run, version):
    return policy(run, version, build(MXFP8Config(), BuildContext(run)))


def told(policy, branch):
    """Log-probabilities of a branch's sampled tokens, computed here."""
    ids_T, sampled_T = to_tensor(branch.ids), to_tensor(branch.sampled).bool()
    with one_thread(), torch.no_grad():
        hidden_TD = policy.trunk(ids_T[None], torch.tensor([len(ids_T)])).hidden_BTD[0]
        return token_logprobs(policy.logits(hidden_TD[:-1]), ids_T[1:])[sampled_T[1:]]


def test_what_was_rewarded_became_likelier(run, events, traces):
    """Beside what was not: in each group the trained tokens' log-probabilities have moved along the advantages."""
    groups = {one["group"]: one for one in events if one["event"] == "GroupScored"}
    before, after = (mxfp8(run, version) for version in (RL, RL + 2))
    assert len(groups) == 4
    for group in groups.values():
        moved = 0.0
        for episode, reward in zip(group["episodes"], group["rewards"], strict=True):
            rise = sum(float((told(after, one) - told(before, one)).sum()) for one in traces[episode].branches)
            moved += (reward - fmean(group["rewards"])) * rise
        assert moved > 0


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_episodes_outgrow_their_window_and_go_on_from_a_recap(run, events, stage):
    compacted = [one["episode_id"] for one in events if one["event"] == "ContextCompacted"]
    long = next(episode for episode in compacted if episode.startswith(f"{stage}-"))
    trace = decode((run / f"traces/{long}.trace").read_bytes())
    recap = next(turn for turn in trace.turns if turn.purpose == "summary")
    assert len(trace.branches) > 1
    done = ", ".join(call.name for turn in trace.turns[: recap.index] for call in turn.calls)
    assert stage == "rl" or recap.text.startswith(f"did {done}; next "), "a demonstrator tells the truth"


def test_every_reward_of_the_file_scores_every_member(run, events):
    alone = {one["result"]["key"]["task_id"]: one for one in events if one["event"] == "EpisodeEnded"}
    groups = [one for one in events if one["event"] == "GroupScored"]
    assert groups
    for group in groups:
        own = {score["reward"] for score in alone[group["task_id"]]["result"]["scores"]}
        for member in group["group_scores"]:
            assert own | {score["reward"] for score in member} == set(REWARDS)


def test_weights_travel_as_differences_to_the_version_before(run, summary):
    last = json.loads((run.parent / f"store/{RL + 2}.json").read_text())
    whole = (run / f"weights/{RL + 2}.safetensors").stat().st_size
    assert last["base"] == RL + 1
    assert last["size_bytes"] < whole / 2
    assert summary["stats"]["replica/replica-0.0/version"] == RL + 2


def test_sampler_and_trainer_agree_as_well_as_eight_bits_can(steps):
    """In MXFP8 a value at a tie may round to the other side, so single tokens may be far apart."""
    for step in steps:
        assert step["metrics"]["parity_median"] < BAR
        assert step["metrics"]["parity_max"] < 0.1


def test_the_sampler_computed_its_experts_in_mxfp8(run, traces):
    """And so did the trainer, which is as close to it: with plain experts most tokens are far from what was sampled."""
    found, plain = defaultdict(list), []
    for branch in (branch for trace in traces.values() for branch in trace.branches):
        if len(versions := {version for version, _ in branch.versions if version >= 0}) == 1:
            found[versions.pop()].append(branch)
    assert RL in found
    for version, branches in found.items():
        sampled = torch.cat([to_tensor(one.logprobs)[to_tensor(one.sampled).bool()] for one in branches])
        eight_bit, other = (
            (torch.cat([told(computed, one) for one in branches]) - sampled).abs()
            for computed in (mxfp8(run, version), policy(run, version, None))
        )
        assert eight_bit.median() < BAR
        plain.append(other)
    assert torch.cat(plain).median() > 50 * BAR


def test_the_picture_of_the_docs_is_drawn_from_such_a_run(run, tmp_path):
    out = tmp_path / "picture.svg"
    subprocess.run([sys.executable, "tools/data_flow.py", str(run), str(out)], cwd=ROOT, check=True)
    texts = ["".join(one.itertext()) for one in ElementTree.parse(out).iter() if one.tag.endswith("text")]
    committed = ElementTree.parse(ROOT / "docs/reference-pipeline.svg").iter()
    assert {"worker-0.0", "replica-0.0", "rank-0"} <= set(texts)
    assert len(texts) == sum(one.tag.endswith("text") for one in committed)
    assert not [text for text in texts if text.endswith(" 0 B") and not text.startswith("0 ")]
