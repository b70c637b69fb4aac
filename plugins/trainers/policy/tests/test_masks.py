"""Sequence masks for extreme mismatch, by hand: what is masked, what that changes, and what is reported."""

from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve

from composer_core.columns import Column
from composer_core.errors import TrainerError
from composer_core.tensors import to_column, to_tensor
from composer_core.types import GroupRewards
from composer_plugin_policy.config import StageSettings

LENGTHS, REWARDS = (9, 14, 7, 11), (1.0, 0.0, 0.5, 0.25)
RL = StageSettings(loss_scale_tokens=20, micro_batch_tokens=60, gradient_clip=0)


def sampled(engine, batch, deltas):
    """The batch as if its sampler had held each trained token of row i less likely by deltas[i][its place mod 2]."""
    sequences = []
    for sequence, own, (even, odd) in zip(batch.sequences, engine.logprobs(batch), deltas, strict=True):
        trained = to_tensor(sequence.trained).bool()
        off_T = torch.zeros(len(sequence.ids))
        off_T[trained] = torch.tensor([odd if place % 2 else even for place in range(int(trained.sum()))])
        sequences.append(evolve(sequence, behavior=to_column(to_tensor(own) - off_T)))
    return evolve(batch, sequences=tuple(sequences))


DELTAS = ((0.0, 0.0), (0.3, 0.3), (-0.3, -0.3), (0.9, -0.9))
"""Rows of ratio 1, of ratio exp(0.3), of exp(-0.3), and one whose tokens cancel but are far off each; their trained
tokens are 5 (2, 4, 5, 7, 8), 8, 3 and 6."""


@pytest.mark.parametrize(
    ("bounds", "masked"),
    [
        ({}, []),
        ({"mask_ratio": 1.3}, [1, 2]),
        ({"mask_ratio": 1.4}, []),  # exp(0.3) is 1.35
        ({"mask_delta": 0.8}, [3]),
        ({"mask_delta": 0.2}, [1, 2, 3]),
        ({"mask_ratio": 1.3, "mask_delta": 0.8}, [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("budget", [60, 1])
def test_a_masked_sequence_is_as_if_its_advantage_were_zero(bounds, masked, budget, engine, batch, gradient_of):
    made, by_hand = engine(), engine()
    for each, settings in ((made, evolve(RL, **bounds)), (by_hand, RL)):
        each.begin("rl", evolve(settings, micro_batch_tokens=budget))
    given = sampled(made, batch(LENGTHS, REWARDS), DELTAS)
    stats = made.step(given).metrics
    untrained = tuple(
        evolve(one, trained=Column.of("U8", [0] * len(one.ids))) if number in masked else one
        for number, one in enumerate(given.sequences)
    )
    by_hand.step(evolve(given, sequences=untrained))
    torch.testing.assert_close(gradient_of(made), gradient_of(by_hand), rtol=1e-5, atol=1e-9)
    if not bounds:
        assert "masked_share" not in stats
        return
    trained = [sum(one.trained.values()) for one in given.sequences]
    assert trained == [5, 8, 3, 6]
    assert stats["masked_sequences"] == len(masked)
    assert stats["masked_share"] == len(masked) / 4
    assert stats["masked_tokens"] == sum(trained[number] for number in masked)


def test_masks_hide_nothing_of_the_mismatch(engine, batch):
    plain, masked = engine(), engine()
    plain.begin("rl", RL)
    masked.begin("rl", evolve(RL, mask_ratio=1.3))
    given = sampled(plain, batch(LENGTHS, REWARDS), DELTAS)
    left, right = (each.step(given).metrics for each in (plain, masked))
    assert left["weight_mean"] == right["weight_mean"]
    assert left["weight_effective_share"] == right["weight_effective_share"]


def test_a_batch_of_which_all_is_masked_has_no_gradient_and_is_no_skip(engine, batch, gradient_of):
    made = engine()
    made.begin("rl", evolve(RL, mask_delta=0.1))
    stats = made.step(sampled(made, batch(LENGTHS, REWARDS), ((0.5, 0.5),) * 4))
    assert not stats.skipped and stats.metrics["masked_share"] == 1.0
    assert gradient_of(made).abs().max() == 0


def test_a_token_that_the_trainer_holds_impossible_cannot_spoil_a_step_that_masks_it(engine, batch):
    made = engine()
    made.begin("rl", evolve(RL, mask_delta=20.0))
    given = sampled(made, batch(LENGTHS, REWARDS), ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (-60.0, 0.0)))
    stats = made.step(given)
    assert not stats.skipped and stats.metrics["masked_sequences"] == 1


def test_what_is_not_a_number_is_not_masked_but_skips_the_step(engine, batch):
    made = engine()
    made.begin("rl", evolve(RL, mask_ratio=1.3, mask_delta=0.5))
    given = batch(LENGTHS, REWARDS)
    broken = evolve(given.sequences[0], behavior=Column.of("F32", [math.nan] * LENGTHS[0]))
    assert made.step(evolve(given, sequences=(broken, *given.sequences[1:]))).skipped


def test_masks_without_the_samplers_log_probabilities_are_refused(engine, batch, algorithm):
    made = engine(evolve(algorithm(), objective=lambda inputs, config: -inputs.logp_T, needs=frozenset()))
    made.begin("rl", evolve(RL, mask_ratio=2.0))
    given = batch((5,), (1.0,))
    given = evolve(given, sequences=tuple(evolve(one, behavior=None, episode=0) for one in given.sequences))
    given = evolve(given, groups=(GroupRewards("g", (0, 1), (1.0, 0.0)),), episodes=2)
    with pytest.raises(TrainerError, match="sequence masks need"):
        made.step(given)
