"""What a step does besides its gradient: update, clipping, schedule, skips, KL, replay, parity, metrics."""

from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve

from composer_core.columns import Blob, Column
from composer_core.errors import ConfigError, PluginFault, TrainerError
from composer_core.tensors import to_column, to_tensor
from composer_core.types import GroupRewards
from composer_plugin_policy.config import StageSettings
from composer_plugin_policy.metrics import ParityPool
from composer_testing.fakes.policy import TinyPolicy

LENGTHS, REWARDS = (9, 14, 7), (1.0, 0.0, 0.5)
RL = StageSettings(loss_scale_tokens=20, micro_batch_tokens=40)


def _spoiled(batch):
    """The same batch with a behavior log-probability that is not a number."""
    first = batch.sequences[0]
    broken = evolve(first, behavior=Column.of("F32", [math.nan] * len(first.ids)))
    return evolve(batch, sequences=(broken, *batch.sequences[1:]))


def _weights(engine):
    return torch.cat([parameter.detach().flatten().clone() for parameter in engine._parameters])


def test_supervised_steps_learn_the_rows_they_see(engine, batch):
    made = engine()
    made.begin("sft", StageSettings(learning_rate=1e-2))
    stats = [made.step(batch((12, 9, 15))).metrics for _ in range(40)]
    assert stats[-1]["nll"] < 0.3 * stats[0]["nll"]
    assert stats[-1]["accuracy"] > 0.9 > stats[0]["accuracy"]


def test_policy_steps_raise_what_was_rewarded_and_lower_the_rest(engine, batch):
    made = engine()
    made.begin("rl", StageSettings(learning_rate=3e-3, loss_scale_tokens=10))
    given = batch((12, 12), (1.0, 0.0))
    before = [sum(column.values()) for column in made.logprobs(given)]
    for _ in range(10):
        made.step(given)
    after = [sum(column.values()) for column in made.logprobs(given)]
    assert after[0] > before[0] and after[1] < before[1]


def test_the_gradient_is_clipped_as_a_whole_and_its_norm_reported_from_before(engine, batch, gradient_of):
    made = engine()
    made.begin("rl", evolve(RL, gradient_clip=1e-3))
    stats = made.step(batch(LENGTHS, REWARDS))
    assert stats.metrics["grad_norm"] > 1e-3
    assert float(gradient_of(made).norm()) == pytest.approx(1e-3, rel=1e-4)


def test_a_step_that_is_not_finite_leaves_weights_and_optimizer_untouched(engine, batch):
    made, clean = engine(), engine()
    for each in (made, clean):
        each.begin("rl", RL)
        each.step(batch(LENGTHS, REWARDS))
    before = _weights(made)
    stats = made.step(_spoiled(batch(LENGTHS, REWARDS)))
    assert stats.skipped and stats.metrics["skipped"] == 1.0
    assert all(math.isfinite(value) for value in stats.metrics.values())
    assert before.equal(_weights(made))
    for each in (made, clean):
        each.step(batch(LENGTHS, REWARDS, seed=1))
    assert _weights(made).equal(_weights(clean))


def test_skips_in_a_row_stop_the_run_and_a_good_step_between_them_does_not(engine, batch):
    made = engine()
    made.begin("rl", evolve(RL, max_nonfinite_in_a_row=2))
    good, bad = batch(LENGTHS, REWARDS), _spoiled(batch(LENGTHS, REWARDS))
    for given in (bad, good, bad):
        made.step(given)
    with pytest.raises(TrainerError, match="2 steps in a row"):
        made.step(bad)


@pytest.mark.parametrize(
    ("schedule", "progress", "share"),
    [("constant", 0.9, 1.0), ("linear", 0.0, 1.0), ("linear", 0.5, 0.6), ("cosine", 0.5, 0.6), ("cosine", 1.0, 0.2)],
)
def test_the_schedule_follows_the_stages_progress(schedule, progress, share, engine, batch):
    made = engine()
    made.begin("rl", evolve(RL, learning_rate=0.01, schedule=schedule, final_learning_rate_share=0.2))
    stats = made.step(evolve(batch(LENGTHS, REWARDS), progress=progress))
    assert stats.metrics["learning_rate"] == pytest.approx(0.01 * share)


def test_warm_up_counts_applied_updates_and_starts_above_zero(engine, batch):
    made = engine()
    made.begin("rl", evolve(RL, learning_rate=0.01, warmup_steps=2))
    rates = [
        made.step(given).metrics["learning_rate"]
        for given in (batch(LENGTHS, REWARDS), _spoiled(batch(LENGTHS, REWARDS)), *[batch(LENGTHS, REWARDS)] * 2)
    ]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.01])


def test_a_batchs_own_settings_hold_for_that_step_and_unknown_ones_are_refused(engine, batch):
    made = engine()
    made.begin("rl", RL)
    given = batch(LENGTHS, REWARDS)
    assert made.step(evolve(given, settings={"learning_rate": 0.5e-3})).metrics["learning_rate"] == 0.5e-3
    assert made.step(given).metrics["learning_rate"] == RL.learning_rate
    with pytest.raises(ConfigError, match="learning_rat"):
        made.step(evolve(given, settings={"learning_rat": 1.0}))


def test_weight_decay_shrinks_matrices_only(engine, batch):
    plain, decayed = engine(), engine()
    plain.begin("rl", evolve(RL, learning_rate=1e-2))
    decayed.begin("rl", evolve(RL, learning_rate=1e-2, weight_decay=0.5))
    start = dict(TinyPolicy().named_parameters())
    for each in (plain, decayed):
        each.step(batch(LENGTHS, REWARDS))
    with_decay = dict(decayed._model.named_parameters())
    for name, parameter in plain._model.named_parameters():
        decay = 1e-2 * 0.5 if parameter.ndim >= 2 else 0.0
        torch.testing.assert_close(with_decay[name], parameter - decay * start[name], atol=1e-6, rtol=1e-5)


def test_the_reward_loses_beta_times_the_k1_sum_before_centering(engine, batch, gradient_of):
    """After the weights have moved off the reference, beta changes rewards by exactly the sum that logprobs show."""
    given = batch(LENGTHS, REWARDS)
    made, by_hand = engine(), engine()
    made.begin("rl", evolve(RL, beta=0.3, gradient_clip=0, learning_rate=1e-2))
    by_hand.begin("rl", evolve(RL, gradient_clip=0, learning_rate=1e-2))
    reference = [sum(column.values()) for column in made.logprobs(given)]
    assert made.step(given).metrics["kl_per_token"] == 0.0
    by_hand.step(given)
    own = [sum(column.values()) for column in made.logprobs(given)]
    k1 = [mine - theirs for mine, theirs in zip(own, reference, strict=True)]
    assert max(map(abs, k1)) > 1e-2
    stats = made.step(given)
    rewards = tuple(reward - 0.3 * kl for reward, kl in zip(REWARDS, k1, strict=True))
    by_hand.step(evolve(given, groups=(GroupRewards("g", (0, 1, 2), rewards),)))
    torch.testing.assert_close(gradient_of(made), gradient_of(by_hand), rtol=1e-3, atol=1e-6)
    trained = sum(sum(sequence.trained.values()) for sequence in given.sequences)
    assert stats.metrics["kl_per_token"] == pytest.approx(sum(k1) / trained, rel=1e-4)


def test_no_reference_is_kept_at_beta_zero(engine, batch):
    made = engine()
    made.begin("rl", RL)
    made.step(batch(LENGTHS, REWARDS))
    assert made._reference is None


def test_equal_rewards_teach_through_kl_alone(engine, batch):
    made = engine()
    made.begin("rl", evolve(RL, beta=0.1, learning_rate=1e-2))
    assert made.step(batch(LENGTHS, (1.0,) * 3)).metrics["flat_share"] == 1.0
    made.step(batch(LENGTHS, REWARDS))
    assert made.step(batch(LENGTHS, (1.0,) * 3)).metrics["flat_share"] == 0.0


def test_an_objective_that_reads_the_reference_gets_the_weights_rl_began_with(engine, batch, algorithm):
    seen = []

    def objective(inputs, config):
        seen.append((inputs.logp_T - inputs.ref_T).abs().max().item())
        return -inputs.advantage_T * inputs.logp_T

    own = evolve(algorithm(), objective=objective, needs=frozenset({"ref"}))
    made = engine(own)
    made.begin("rl", evolve(RL, learning_rate=1e-2, micro_batch_tokens=1000))
    for _ in range(2):
        made.step(batch(LENGTHS, REWARDS))
    assert seen[0] == 0 and seen[1] > 1e-3


def test_parity_is_compared_on_comparable_tokens_only(engine, batch):
    made = engine()
    made.begin("rl", RL)
    given = batch(LENGTHS, REWARDS)
    own = [to_tensor(column) for column in made.logprobs(given)]
    sequences = []
    for sequence, logp_T in zip(given.sequences, own, strict=True):
        comparable = torch.arange(len(logp_T)) < 6
        behavior = torch.where(comparable, logp_T + 1e-3, logp_T + 1.0)
        sequences.append(
            evolve(sequence, behavior=to_column(behavior), comparable=to_column(comparable.to(torch.uint8)))
        )
    stats = made.step(
        evolve(given, sequences=tuple(sequences), groups=(GroupRewards("g", (0, 1, 2), (1.0, 0.0, 0.25)),))
    )
    assert stats.metrics["parity_tokens"] == 3 * 3  # trained places 2, 4, 5 of each
    assert stats.metrics["parity_p999"] == pytest.approx(1e-3, rel=1e-2)
    assert stats.metrics["parity_max"] == pytest.approx(1e-3, rel=1e-2)
    assert stats.metrics["parity_apart_share"] == 1


def test_a_probe_is_compared_where_no_row_of_the_batch_may_be_and_changes_nothing_else(engine, batch, gradient_of):
    made, without = engine(), engine()
    for each in (made, without):
        each.begin("rl", RL)
    given = batch(LENGTHS, REWARDS)
    probe = shifted(made, batch((12,), seed=5), 1e-3).sequences
    found = made.step(evolve(given, probe=probe)).metrics
    assert without.step(given).metrics["parity_tokens"] == 0
    assert found["parity_tokens"] > 0 and found["parity_probe_rows"] == 1
    assert found["parity_max"] == pytest.approx(1e-3, rel=1e-2), "by the weights of before the update"
    assert gradient_of(made).equal(gradient_of(without)) and _weights(made).equal(_weights(without))
    away = shifted(made, batch((12,), seed=5), 2.0).sequences
    with pytest.raises(TrainerError, match="does not compute the policy"):
        made.step(evolve(given, probe=away))
    assert made.step(evolve(shifted(made, given, 0.0), probe=away)).metrics["parity_max"] <= 1e-5, (
        "it has rows of its own"
    )


def test_rows_of_flat_groups_are_compared_where_none_that_is_trained_may_be(engine, batch):
    made = engine()
    made.begin("rl", RL)
    given = batch((9, 12, 9, 12))
    flat = shifted(made, given, 1e-3).sequences[:2]
    groups = (GroupRewards("flat", (0, 1), (1.0, 1.0)), GroupRewards("g", (2, 3), (1.0, 0.0)))
    mixed = evolve(given, objective="policy/dr_grpo", sequences=(*flat, *given.sequences[2:]), groups=groups)
    found = made.step(mixed).metrics
    assert found["parity_max"] == pytest.approx(1e-3, rel=1e-2)
    assert found["trained_tokens"] > 0


def test_parity_counts_the_tokens_above_the_bar_over_all_steps():
    pool = ParityPool()
    pool.add(torch.full((600,), 2e-6))
    found = pool.add(torch.cat([torch.full((395,), 3e-6), torch.full((5,), 1e-3)]))
    assert found == pytest.approx({"parity_p99": 3e-6, "parity_p999": 1e-3, "parity_apart_share": 0.005})


def shifted(made, given, nats):
    """The batch as a sampler gave it whose log-probabilities are so far off; all of it comparable."""
    rows = zip(given.sequences, [to_tensor(column) for column in made.logprobs(given)], strict=True)
    every = [
        evolve(s, behavior=to_column(logp_T + nats), comparable=to_column(torch.ones(len(logp_T), dtype=torch.uint8)))
        for s, logp_T in rows
    ]
    return evolve(given, sequences=tuple(every))


def test_parity_is_measured_where_no_group_teaches_anything(engine, batch):
    """A policy that solves nothing may be one that its sampler computes wrongly."""
    made = engine()
    made.begin("rl", RL)
    stats = made.step(shifted(made, batch(LENGTHS, (0.0,) * 3), 1e-3))
    assert stats.metrics["trained_tokens"] == 0 and stats.metrics["parity_tokens"] > 0
    assert stats.metrics["parity_median"] == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("rewards", [REWARDS, (0.0,) * 3])
def test_a_sampler_of_another_policy_stops_the_run_before_a_step(engine, batch, rewards):
    made = engine()
    made.begin("rl", RL)
    before = {name: tensor.clone() for name, tensor in made._model.state_dict().items()}
    given = shifted(made, batch(LENGTHS, rewards), -2.0)
    with pytest.raises(TrainerError, match="does not compute the policy that is trained"):
        made.step(given)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made._model.state_dict().items())
    made.begin("rl", evolve(RL, parity_stop=0.0))
    assert made.step(given).metrics["parity_median"] == pytest.approx(2.0)


def test_importance_weights_are_reported_with_their_cap(engine, batch):
    made = engine()
    made.begin("rl", RL)
    given = batch((9, 9), (1.0, 0.0))
    own = [to_tensor(column) for column in made.logprobs(given)]
    shifts = (0.0, -5.0)  # the second row was sampled by a policy that held its tokens far less likely
    sequences = tuple(
        evolve(sequence, behavior=to_column(logp_T + shift))
        for sequence, logp_T, shift in zip(given.sequences, own, shifts, strict=True)
    )
    stats = made.step(evolve(given, sequences=sequences)).metrics
    assert stats["weight_mean"] == pytest.approx(1.5, rel=1e-5)
    assert stats["weight_capped_share"] == 0.5
    assert stats["weight_effective_share"] == pytest.approx(1.5**2 / 2.5, rel=1e-5)
    assert 0 < stats["entropy"] <= math.log(32)
    assert "parity_p999" not in stats and stats["parity_tokens"] == 0


def test_temperature_is_applied_to_the_trained_distribution(engine, batch):
    made = engine()
    made.begin("rl", RL)
    given = batch((9,), (1.0,))
    hot = evolve(given, sequences=tuple(evolve(s, temperature=2.0) for s in given.sequences))
    row = given.sequences[0]
    ids_T = to_tensor(row.ids).long()
    logits_TV = made._model.logits(made._model.trunk(ids_T[None], torch.tensor([9])).hidden_BTD[0])
    place = int(to_tensor(row.trained).nonzero()[0])
    for batch_, temperature in ((given, 1.0), (hot, 2.0)):
        expected = torch.log_softmax(logits_TV[place - 1] / temperature, -1)[ids_T[place]]
        assert made.logprobs(batch_)[0].values()[place] == pytest.approx(expected.item(), rel=1e-5)


def _routed(batch, shift=0):
    """The batch with its tiny policy's own expert ids, the last token's missing; `shift` moves them along."""
    policy = TinyPolicy(experts=8)
    sequences = []
    for sequence in batch.sequences:
        ids_1T = to_tensor(sequence.ids).long()[None]
        routes = policy.trunk(ids_1T, torch.tensor([ids_1T.shape[1]]), want_routes=True).routes_BTLK[0, :-1]
        sequences.append(evolve(sequence, routes=to_column(routes.roll(shift, 0))))
    return evolve(batch, sequences=tuple(sequences))


def test_replaying_a_policys_own_routes_changes_nothing_and_shifted_ones_do(engine, batch):
    made = engine(experts=8)
    made.begin("rl", RL)
    given = batch(LENGTHS, REWARDS)
    own = torch.cat([to_tensor(column) for column in made.logprobs(given)])
    replayed = torch.cat([to_tensor(column) for column in made.logprobs(_routed(given))])
    shifted = torch.cat([to_tensor(column) for column in made.logprobs(_routed(given, shift=1))])
    torch.testing.assert_close(replayed, own)
    assert (shifted - own).abs().max() > 1e-2
    metrics = made.step(_routed(given)).metrics
    assert metrics["rerouted_share"] == metrics["route_disagreement_share"] == 0.0
    assert "rerouted_share" not in made.step(given).metrics


def test_replayed_experts_that_the_router_has_turned_away_from_are_replaced_and_counted(engine, batch):
    """With a tau that no replayed gate reaches the policy routes freely; disagreement is counted either way."""
    made = engine(experts=8)
    given, routed = batch(LENGTHS, REWARDS), _routed(batch(LENGTHS, REWARDS), shift=1)
    made.begin("rl", evolve(RL, replay_tau=1e9, learning_rate=1e-12))
    own = torch.cat([to_tensor(column) for column in made.logprobs(given)])
    torch.testing.assert_close(torch.cat([to_tensor(column) for column in made.logprobs(routed)]), own)
    free = made.step(routed).metrics
    made.begin("rl", evolve(RL, replay_tau=0, learning_rate=1e-12))
    forced = made.step(routed).metrics
    assert forced["rerouted_share"] == 0.0
    assert free["rerouted_share"] == free["route_disagreement_share"] == forced["route_disagreement_share"] > 0.5


def test_expert_ids_that_lie_apart_are_fetched_for_the_rows_that_are_forwarded(engine, batch):
    made = engine(experts=8)
    routed, shelf, read = _routed(batch(LENGTHS, REWARDS)), {}, []

    class Shelf:
        def put(self, key, data):
            shelf[key] = data
            return key

        def get(self, uri):
            read.append(uri)
            return shelf[uri]

    made._build = evolve(made._build, get=lambda kind, get=made._build.get: Shelf() if kind == "stores" else get(kind))
    apart = tuple(
        evolve(one, routes=Blob.put(Shelf(), f"{one.episode}", one.routes)) for one in _routed(routed).sequences
    )
    made.begin("rl", RL)
    expected = [to_tensor(column) for column in made.logprobs(routed)]
    found = [to_tensor(column) for column in made.logprobs(evolve(routed, sequences=apart))]
    assert all(map(torch.equal, found, expected)) and sorted(read) == ["0", "1", "2"]
    read.clear()
    flat = GroupRewards("g", (0, 1, 2), (1.0, 0.5, 0.0))
    assert made.step(evolve(routed, sequences=apart, groups=(flat,))).metrics["rerouted_share"] == 0
    assert sorted(read) == ["0", "2"], "a row without advantage is not forwarded, so its ids stay where they are"


def test_routes_that_do_not_fit_are_refused(engine, batch):
    given = _routed(batch(LENGTHS, REWARDS))
    first = given.sequences[0]
    short = evolve(first, routes=to_column(to_tensor(first.routes)[:2]))
    made, dense = engine(experts=8), engine()
    for each in (made, dense):
        each.begin("rl", RL)
    with pytest.raises(TrainerError, match="routes do not fit"):
        made.step(evolve(given, sequences=(short, *given.sequences[1:])))
    with pytest.raises(TrainerError, match="no experts"):
        dense.step(given)


def test_batches_that_contradict_themselves_are_refused(engine, batch):
    made = engine()
    made.begin("rl", RL)
    given = batch(LENGTHS, REWARDS)
    with pytest.raises(TrainerError, match="another algorithm"):
        made.step(evolve(given, objective="policy/rloo"))
    with pytest.raises(TrainerError, match="more episodes than it says"):
        made.step(evolve(given, episodes=2))
    with pytest.raises(TrainerError, match="in no group"):
        made.step(evolve(given, groups=()))
    odd = evolve(given.sequences[0], behavior=Column.of("F32", [0.0]))
    with pytest.raises(TrainerError, match="differ in length"):
        made.step(evolve(given, sequences=(odd, *given.sequences[1:])))


def test_an_objective_that_averages_or_raises_is_named(engine, batch, algorithm):
    averaging = evolve(algorithm(), objective=lambda inputs, config: inputs.logp_T.mean())
    raising = evolve(algorithm(), objective=lambda inputs, config: inputs.nothing)
    for own, error in ((averaging, TrainerError), (raising, PluginFault)):
        made = engine(own)
        made.begin("rl", RL)
        with pytest.raises(error, match="policy/dr_grpo"):
            made.step(batch(LENGTHS, REWARDS))
