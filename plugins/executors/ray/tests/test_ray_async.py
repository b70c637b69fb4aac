"""The real trainer with stale tokens allowed: episodes go on beside its steps, and what is told of them is true.

What each step trained is read from the traces and from the order of events, and then compared with what the ledger
and the trainer tell.
"""

from collections import Counter

import pytest
from attrs import define, field

from composer_core.columns import Blob
from composer_core.traces import decode
from composer_core.tracking import read_events

STEPS, GROUPS, MEMBERS, LIMIT = 10, 2, 4, 1
REAL = (
    "deterministic=false",
    "threads=1",
    'tools={use=["fakes/read"]}',
    'model={use="hf/tiny-moe",vocab_size=320,width=32,heads=2,kv_heads=1,expert_count=16,expert_width=32,init_std=0.2}',
    'renderer={use="chatty/xml"}',
    'sampler={use="torch-sampler/continuous",slots=16,context_tokens=1024}',
    'trainer={use="policy/policy"}',
    'algorithm={use="policy/dr_grpo"}',
    'rewards=[{use="chatty/every_other"}]',
    "limits={turns=24,tokens=192,turn_tokens=8,context_tokens=1024}",
    'stages=[{name="rl",kind="rl",router_replay=true,replay_tau=0.0,learning_rate=3e-3,loss_scale_tokens=60.0,'
    f"steps={STEPS},groups_per_step={GROUPS},group_size={MEMBERS},max_staleness={LIMIT}}}]",
    "evaluations=[]",
)


@define
class Step:
    """What a step trained, and what went on meanwhile."""

    version: int
    """Of the weights that it began from: those that were published last."""
    number: int = 0
    metrics: dict = field(factory=dict)
    groups: list = field(factory=list)
    """Of each, its id and the traces of its members."""
    ended: list = field(factory=list)
    """When episodes ended while the trainer was in the step."""

    @property
    def traces(self):
        return [trace for _, members in self.groups for trace in members]


@pytest.fixture(scope="module")
def made(shared_run):
    run = shared_run(*REAL, plugins="ray,chatty,hf,torch-sampler,policy").start()
    return run.finish(300)  # several processes load torch at once


@pytest.fixture(scope="module")
def steps(made):
    """One for each version; nothing is trained from the last."""
    found = []
    for event in read_events(made.folder):
        match event["event"]:
            case "WeightsPublished":
                found.append(Step(event["weights"]["version"]))
            case "GroupScored":
                members = [decode((made.folder / f"traces/{one}.trace").read_bytes()) for one in event["episodes"]]
                found[-1].groups.append((event["group"], members))
            case "EpisodeEnded" if event["purpose"] == "rl":
                found[-1].ended.append(event["time_s"])
            case "StepEnded":
                found[-1].number, found[-1].metrics = event["step"], event["metrics"]
                assert event["version"] == found[-1].version
                began_s = event["time_s"] - event["metrics"]["train_s"]
                found[-1].ended = [time_s for time_s in found[-1].ended if time_s > began_s]
    return found[:-1]


def versions(trace, start=0, stop=None):
    """Of the tokens that were sampled among the ids [start, stop)."""
    (branch,) = trace.branches
    return [one for one in [v for v, count in branch.versions for _ in range(count)][start:stop] if one >= 0]


def test_episodes_end_while_the_trainer_is_in_a_step(steps):
    assert any(step.ended for step in steps)


def test_weights_are_swapped_in_the_middle_of_turns_and_never_back(steps):
    turns = [versions(trace, t.start, t.stop) for step in steps for trace in step.traces for t in trace.turns]
    assert any(len(set(turn)) > 1 for turn in turns)
    assert all(turn == sorted(turn) for turn in turns)


def test_no_trained_token_is_older_than_the_limit_or_newer_than_the_trainer(steps, made):
    counted = Counter()
    for step in steps:
        tokens = [[version for trace in members for version in versions(trace)] for _, members in step.groups]
        stale = [step.version - min(group) for group in tokens]
        assert max(map(max, tokens)) <= step.version
        assert max(stale) == step.metrics["staleness_max"] <= LIMIT
        counted.update(f"staleness/{one}" for one in stale)
    assert counted[f"staleness/{LIMIT}"], "without it nothing says that there is a limit"
    told = made.ledger()["counters"]
    assert counted == {name: count for name, count in told.items() if name.startswith("staleness/")}


def test_each_group_is_trained_once_and_step_follows_step(steps, made):
    assert [(step.number, step.version) for step in steps] == [(n + 1, n) for n in range(STEPS)]
    assert {len(step.groups) for step in steps} == {GROUPS}
    groups = {name for step in steps for name, _ in step.groups}
    episodes = {trace.key for step in steps for trace in step.traces}
    assert len(groups) == STEPS * GROUPS == made.ledger()["counters"]["trained_groups"]
    assert len(episodes) == STEPS * GROUPS * MEMBERS
    for step in steps:
        assert step.metrics["trained_tokens"] == sum(trace.sampled_tokens() for trace in step.traces)


def test_trainer_and_sampler_agree_on_tokens_of_the_same_version(steps):
    """Of the step's own, or else of a probe that was sampled for it; the first step's are all its own."""
    assert steps[0].metrics["parity_tokens"] == steps[0].metrics["trained_tokens"]
    for step in steps:
        assert step.metrics["parity_tokens"] > 0
        assert step.metrics["parity_p999"] <= 1e-5
        assert step.metrics["parity_max"] <= 1e-4


def test_the_trainer_takes_the_samplers_experts_where_it_would_choose_others(steps):
    """All of them, since `replay_tau` is 0."""
    for trace in (trace for step in steps for trace in step.traces):
        (branch,) = trace.branches
        assert isinstance(branch.routes, Blob)
        assert branch.routes.shape == (trace.turns[-1].stop - 1, 2, 2), "tokens but the last, layers, experts"
    assert {step.metrics["rerouted_share"] for step in steps} == {0.0}
    assert steps[0].metrics["route_disagreement_share"] <= 1e-3, "of equal weights; near ties flip"
    assert max(step.metrics["route_disagreement_share"] for step in steps) > 1e-2, "of weights that were changed since"
