"""The gradient does not depend on how a batch is cut or ordered, and is the one a plain sum gives.

Two ranks are tested in test_ranks.py.
"""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from composer_core.tensors import to_tensor
from composer_core.types import GroupRewards
from composer_plugin_policy.batching import cut, make_rows
from composer_plugin_policy.config import StageSettings
from composer_testing.fakes.policy import TinyPolicy

LENGTHS = (5, 17, 9, 30)
REWARDS = (1.0, 0.0, 0.25, 0.5)
CUTS = {1: 120, 2: 60, 4: 1}
"""Micro-batches -> a budget that cuts LENGTHS into as many."""


def _settings(**fields):
    return StageSettings(gradient_clip=0, loss_scale_tokens=50, **fields)


def _by_hand(policy, batch, advantages, scale):
    """Sum over tokens of -min(ratio, 2) x A x logp over scale, one unpadded row at a time; the plain formula."""
    total = torch.zeros(())
    for sequence in batch.sequences:
        ids_1T = to_tensor(sequence.ids).long()[None]
        hidden_TD = policy.trunk(ids_1T, torch.tensor([ids_1T.shape[1]])).hidden_BTD[0]
        logs_TV = torch.log_softmax(policy.logits(hidden_TD), -1)
        for place, flag in enumerate(sequence.trained.values()):
            if flag:
                logp = logs_TV[place - 1, ids_1T[0, place]]
                weight = (logp.detach() - sequence.behavior.values()[place]).exp().clamp(max=2.0)
                total = total - weight * advantages[sequence.episode, sequence.segment] * logp
    (total / scale).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()]), float(total.detach() / scale)


def test_the_budget_cuts_the_batch_as_the_tests_below_assume(batch):
    rows = make_rows(batch(LENGTHS, REWARDS).sequences)
    assert {n: len(cut(rows, budget, in_order=False)) for n, budget in CUTS.items()} == {1: 1, 2: 2, 4: 4}


@pytest.mark.parametrize("count", CUTS)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_policy_gradient_is_the_plain_sum_over_episodes_times_l0(
    count, deterministic, reverse, engine, batch, gradient_of
):
    given = batch(LENGTHS, REWARDS)
    mean = sum(REWARDS) / 4
    expected, loss = _by_hand(
        TinyPolicy(), given, {(e, 0): reward - mean for e, reward in enumerate(REWARDS)}, scale=4 * 50
    )
    if reverse:
        given = evolve(given, sequences=given.sequences[::-1])
    made = engine(deterministic=deterministic)
    made.begin("rl", _settings(micro_batch_tokens=CUTS[count]))
    stats = made.step(given)
    torch.testing.assert_close(gradient_of(made), expected, rtol=2e-5, atol=1e-7)
    assert stats.metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-7)
    assert stats.metrics["grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-5)


@pytest.mark.parametrize("count", CUTS)
def test_the_gradient_of_nll_is_that_of_the_mean_over_all_trained_tokens(count, engine, batch, gradient_of):
    given = batch(LENGTHS)
    trained = sum(sum(sequence.trained.values()) for sequence in given.sequences)
    policy = TinyPolicy()
    total = torch.zeros(())
    for sequence in given.sequences:
        ids_T = to_tensor(sequence.ids).long()
        logs_TV = torch.log_softmax(
            policy.logits(policy.trunk(ids_T[None], torch.tensor([len(ids_T)])).hidden_BTD[0]), -1
        )
        places = to_tensor(sequence.trained).nonzero().flatten()
        total = total - logs_TV[places - 1, ids_T[places]].sum()
    (total / trained).backward()
    made = engine()
    made.begin("sft", _settings(micro_batch_tokens=CUTS[count]))
    stats = made.step(given)
    torch.testing.assert_close(
        gradient_of(made), torch.cat([p.grad.flatten() for p in policy.parameters()]), rtol=2e-5, atol=1e-7
    )
    assert stats.metrics["nll"] == pytest.approx(float(total.detach()) / trained, rel=1e-5)
    assert stats.metrics["trained_tokens"] == trained


def test_an_all_failed_group_of_unequal_lengths_has_no_gradient_and_needs_no_forward(engine, batch, gradient_of):
    made = engine()
    made.begin("rl", _settings())
    before = {name: tensor.clone() for name, tensor in made._model.state_dict().items()}
    stats = made.step(batch(LENGTHS, (0.0,) * 4))
    assert gradient_of(made).abs().max() == 0
    assert made._model.calls == 0
    assert stats.metrics["flat_share"] == 1.0 and not stats.skipped
    assert all(tensor.equal(before[name]) for name, tensor in made._model.state_dict().items())


def test_a_flat_group_still_counts_among_the_admitted_episodes(engine, batch, sequence, gradient_of):
    alone = batch(LENGTHS, REWARDS)
    flat = tuple(sequence(8, episode=episode) for episode in (4, 5, 6, 7))
    both = evolve(
        alone,
        sequences=alone.sequences + flat,
        episodes=8,
        groups=(*alone.groups, GroupRewards("flat", (4, 5, 6, 7), (1.0,) * 4)),
    )
    made, other = engine(), engine()
    for each, given in ((made, alone), (other, both)):
        each.begin("rl", _settings())
        each.step(given)
    torch.testing.assert_close(gradient_of(other), gradient_of(made) / 2)


@pytest.mark.parametrize(
    ("credit", "shares"), [("share", (1.0, 1.0, 1.0)), ("split", (1 / 3, 1 / 3, 1 / 3)), ("last", (0.0, 0.0, 1.0))]
)
def test_a_chain_counts_once_in_its_groups_mean_and_spreads_its_credit(
    credit, shares, engine, batch, sequence, gradient_of
):
    chain = tuple(sequence(length, episode=0, segment=segment) for segment, length in enumerate((11, 6, 14)))
    given = evolve(batch((11, 8), (1.0, 0.0)), sequences=(*chain, sequence(8, episode=1)), episodes=2)
    advantages = {(0, segment): 0.5 * share for segment, share in enumerate(shares)} | {(1, 0): -0.5}
    expected, _ = _by_hand(TinyPolicy(), given, advantages, scale=2 * 50)
    made = engine()
    made.begin("rl", _settings(credit=credit))
    made.step(given)
    torch.testing.assert_close(gradient_of(made), expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["ppo_clip", "dapo", "gspo", "cispo"])
def test_what_is_clipped_does_not_depend_on_how_a_chain_is_cut_or_ordered(
    name, algorithm, engine, batch, sequence, gradient_of
):
    """A ratio of a whole sequence is a branch's: the branches of one episode may be in several micro-batches."""
    given = batch((11, 8), (1.0, 0.0), objective=f"policy/{name}")
    chain = tuple(sequence(length, episode=0, segment=segment) for segment, length in enumerate((11, 6, 14)))
    given = evolve(given, sequences=(*chain, sequence(8, episode=1)), episodes=2)
    found = []
    for budget, order in ((200, 1), (1, -1)):
        made = engine(algorithm(name))
        made.begin("rl", _settings(micro_batch_tokens=budget))
        stats = made.step(evolve(given, sequences=given.sequences[::order])).metrics
        found.append((gradient_of(made), stats.get("clipped_share")))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=2e-5, atol=1e-7)
    assert found[0][0].abs().max() > 0
    assert found[0][1] == found[1][1]
    assert (found[0][1] or 0) > 0 or name == "cispo"
