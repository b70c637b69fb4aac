"""From an episode of three windows to the gradient of each token, by numbers that can be followed by hand.

Two episodes, rewards 1 and 0: advantages 0.5 and -0.5. E x L0 = 2 x 10. The sampler and the trainer agree, so every
importance weight is 1, and the gradient of the loss by a token's log-probability is minus its advantage over 20.
"""

from __future__ import annotations

import pytest
import torch

from composer_core.batches import sequences_of
from composer_core.protocols import Algorithm
from composer_core.tensors import ObjectiveInputs
from composer_core.types import Call, GroupRewards, TrainBatch
from composer_plugin_policy.algorithms import dr_grpo
from composer_plugin_policy.config import PolicyGradientConfig, StageSettings
from composer_plugin_policy.objectives import pg_tis
from composer_plugin_policy.plan import plan_policy
from composer_plugin_summary.config import SummaryConfig
from composer_plugin_summary.summarize import Summarizing
from composer_testing.episodes import LOGPROB, Script, build_context, play

DR_GRPO = Algorithm("policy/dr_grpo", dr_grpo, pg_tis, PolicyGradientConfig(), frozenset({"behavior", "old"}))
LOOK, DONE = Call("c0", "write", {"path": "answer.txt", "text": "x" * 100}), Call("c0", "done", {})
TURNS = [LOOK, "hm</think>one", LOOK, "hm</think>two", DONE]
A = 0.5 / 20


@pytest.fixture
def chain(tmp_path):
    """The trace of an episode that sums up twice."""

    def make(**settings):
        config = SummaryConfig(trigger_tokens=120, summary_tokens=30, think_tokens=30, state=(), **settings)
        return play(Script(TURNS), Summarizing(config, build_context(tmp_path)))

    return make


def gradients(trace, credit):
    """Gradients of the turns of the chain and of the other episode; how many rows have any besides."""
    other = play(Script([DONE]))
    rows = (*sequences_of(trace, 0, 1.0), *sequences_of(other, 1, 1.0))
    batch = TrainBatch("rl", "policy/dr_grpo", rows, 2, (GroupRewards("g", (0, 1), (1.0, 0.0)),))
    plan = plan_policy(batch, StageSettings(credit=credit, loss_scale_tokens=10), DR_GRPO, lambda rows, episodes: {})
    found = {(row.episode, row.segment): [0.0] * len(row.ids) for row in rows}
    for row in plan.rows:
        logp_T = torch.full((len(row.positions_N),), LOGPROB, requires_grad=True)
        inputs = ObjectiveInputs(
            logp_T, torch.full_like(logp_T, row.advantage), torch.full_like(logp_T, LOGPROB), logp_T.detach()
        )
        (plan.objective(inputs, DR_GRPO.config).sum() / plan.divisor).backward()
        for position, value in zip(row.positions_N.tolist(), logp_T.grad.tolist(), strict=True):
            found[row.sequence.episode, row.sequence.segment][position] = value
    return [
        [_only(found[0, turn.branch], turn) for turn in trace.turns],
        [_only(found[1, turn.branch], turn) for turn in other.turns],
        sum(map(any, found.values())),
    ]


def _only(values, turn):
    """The one value that all tokens of a turn have; what is taken is cleared, so that the rest can be looked at."""
    (value,) = {round(value, 9) for value in values[turn.start : turn.stop]}
    values[turn.start : turn.stop] = [0.0] * (turn.stop - turn.start)
    return pytest.approx(value)


@pytest.mark.parametrize(
    ("credit", "by_branch"), [("share", (A, A, A)), ("split", (A / 3, A / 3, A / 3)), ("last", (0, 0, A))]
)
def test_every_sampled_token_of_the_chain_is_moved_by_its_share_summaries_included(chain, credit, by_branch):
    trace = chain()
    assert [turn.purpose for turn in trace.turns] == ["act", "summary", "act", "summary", "act"]
    turns, other, left = gradients(trace, credit)
    first, second, third = by_branch
    assert turns == [-first, -first, -second, -second, -third]
    assert other == [A]
    assert left == 0, "prompt, requests, results, and the summaries where they were carried over to"


@pytest.mark.parametrize(("credit", "share"), [("share", A), ("split", A / 3)])
def test_summaries_that_are_masked_are_not_moved_and_cost_the_others_nothing(chain, credit, share):
    turns, _, left = gradients(chain(untrained_in=("rl",)), credit)
    assert turns == [-share, 0, -share, 0, -share]
    assert left == 0
