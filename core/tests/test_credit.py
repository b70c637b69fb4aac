"""Credit by hand: the KL term, chains, and what is refused."""

from __future__ import annotations

import math

import pytest

from composer_core.columns import Column
from composer_core.credit import (
    CreditRule,
    EpisodeKL,
    episode_advantages,
    flat_share,
    penalized,
    segment_advantages,
    segments_of,
)
from composer_core.errors import PluginFault, TrainerError
from composer_core.protocols import Algorithm
from composer_core.types import GroupRewards, TrainSequence


def _centered(rewards, config):
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def _algorithm(advantage=_centered):
    return Algorithm("test/plain", advantage, lambda inputs, config: inputs, None, frozenset())


def _row(episode, segment, trained=1):
    return TrainSequence(Column.of("I32", [1, 2]), Column.of("U8", [0, trained]), episode, segment)


GROUP = GroupRewards("g", (4, 7), (1.0, 0.0))


def test_advantages_belong_to_the_episodes_that_a_group_names():
    assert episode_advantages((GROUP,), _algorithm(), CreditRule()) == {4: 0.5, 7: -0.5}


def test_groups_are_centered_one_by_one():
    groups = (GROUP, GroupRewards("h", (0, 1), (10.0, 10.0)))
    advantages = episode_advantages(groups, _algorithm(), CreditRule())
    assert advantages == {4: 0.5, 7: -0.5, 0: 0.0, 1: 0.0}
    assert flat_share(groups, advantages) == 0.5


def test_k1_takes_beta_times_the_sum_off_each_reward_before_centering():
    kl = {4: EpisodeKL(3.0, 10), 7: EpisodeKL(-1.0, 2)}
    rule = CreditRule(beta=0.1)
    assert penalized(GROUP, rule, kl) == pytest.approx((1.0 - 0.3, 0.0 + 0.1))
    assert episode_advantages((GROUP,), _algorithm(), rule, kl) == pytest.approx({4: 0.3, 7: -0.3})


def test_k1_mean_takes_the_mean_per_token_so_length_alone_costs_nothing():
    short, long = EpisodeKL(0.2, 2), EpisodeKL(2.0, 20)
    kl = {4: short, 7: long}
    assert penalized(GROUP, CreditRule(beta=1.0, kl="k1_mean"), kl) == pytest.approx((0.9, -0.1))
    assert penalized(GROUP, CreditRule(beta=1.0, kl="k1"), kl) == pytest.approx((0.8, -2.0))


def test_an_episode_without_trained_tokens_has_no_kl():
    assert penalized(GROUP, CreditRule(beta=1.0), {}) == GROUP.rewards
    assert penalized(GROUP, CreditRule(beta=1.0, kl="k1_mean"), {4: EpisodeKL(0.0, 0)}) == GROUP.rewards


@pytest.mark.parametrize(
    ("mode", "chain"), [("share", [0.6, 0.6, 0.6]), ("split", [0.2, 0.2, 0.2]), ("last", [0.0, 0.0, 0.6])]
)
def test_a_chains_advantage_is_spread_over_its_segments(mode, chain):
    spread = segment_advantages({0: 0.6, 1: -0.6}, {0: (0, 1, 2), 1: (0,)}, mode)
    assert [spread[0, segment] for segment in range(3)] == pytest.approx(chain)
    assert spread[1, 0] == -0.6


def test_a_chain_counts_once_in_its_groups_mean():
    rows = [_row(0, 0), _row(0, 1), _row(0, 2), _row(1, 0), _row(2, 0)]
    group = GroupRewards("g", (0, 1, 2), (1.0, 0.0, 0.0))
    advantages = episode_advantages((group,), _algorithm(), CreditRule())
    assert advantages[0] == pytest.approx(2 / 3)
    assert segments_of(rows) == {0: (0, 1, 2), 1: (0,), 2: (0,)}


def test_the_last_segment_is_the_last_in_the_chain_wherever_its_row_stands():
    assert segments_of([_row(0, 2), _row(0, 0)]) == {0: (0, 2)}
    assert segment_advantages({0: 1.0}, {0: (0, 2)}, "last") == {(0, 0): 0.0, (0, 2): 1.0}


def test_a_segment_in_which_nothing_was_sampled_takes_no_credit():
    assert segments_of([_row(0, 0), _row(0, 1), _row(0, 2, trained=0)]) == {0: (0, 1)}


def test_an_episode_in_two_groups_is_refused():
    with pytest.raises(TrainerError, match="episode 4 of the batch is in two groups"):
        episode_advantages((GROUP, GroupRewards("h", (4,), (0.0,))), _algorithm(), CreditRule())


def test_a_sequence_of_an_episode_in_no_group_is_refused():
    with pytest.raises(TrainerError, match="in no group"):
        segment_advantages({0: 1.0}, {0: (0,), 3: (0,)}, "share")


@pytest.mark.parametrize("values", [[0.0], [0.0, math.nan], [0.0, math.inf], [0.0, 0.0, 0.0]])
def test_an_algorithm_that_gives_no_usable_numbers_is_named(values):
    with pytest.raises(TrainerError, match="test/plain gave no usable advantages"):
        episode_advantages((GROUP,), _algorithm(lambda rewards, config: values), CreditRule())


def test_an_algorithm_that_raises_is_attributed_to_its_plugin():
    with pytest.raises(PluginFault, match=r"test/plain \(algorithms\) raised ZeroDivisionError"):
        episode_advantages((GROUP,), _algorithm(lambda rewards, config: [1 / 0]), CreditRule())
