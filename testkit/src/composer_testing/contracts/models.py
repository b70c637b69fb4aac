"""What every policy network must do (`tensors.PolicyModel`). Subclass `ModelContract` and override `build`.

Needs torch. Legend: B rows, T new tokens a row, S tokens of a sequence, L MoE layers, K experts per token.
"""

from __future__ import annotations

import pytest
import torch

from composer_core.tensors import PolicyModel

CAPACITY = 48
LENGTHS = (17, 30, 10)


def sequences(vocab_size: int) -> list[torch.Tensor]:
    """Rows of LENGTHS random ids."""
    source = torch.Generator().manual_seed(3)
    return [torch.randint(0, vocab_size, (length,), generator=source) for length in LENGTHS]


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids [B, T] and lengths [B]."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


class ModelContract:
    """Name your subclass `Test...`; a mixture of experts subclasses `RoutedModelContract`."""

    tolerance = 1e-5

    def build(self) -> PolicyModel:
        raise NotImplementedError("return a small policy; the same weights each time")

    @pytest.fixture
    def policy(self) -> PolicyModel:
        policy = self.build()
        policy.eval()
        return policy

    def logits(self, policy: PolicyModel, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """[S, V] of each row by one full forward, every row on its own."""
        with torch.no_grad():
            return [policy.logits(policy.trunk(*padded([row])).hidden_BTD[0]) for row in rows]

    def close(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=self.tolerance, atol=self.tolerance)

    def test_a_row_does_not_depend_on_its_company(self, policy: PolicyModel) -> None:
        rows = sequences(policy.vocab_size)
        with torch.no_grad():
            hidden_BTD = policy.trunk(*padded(rows)).hidden_BTD
        for row, expected in enumerate(self.logits(policy, rows)):
            self.close(policy.logits(hidden_BTD[row, : len(expected)].detach()), expected)

    def test_a_token_sees_nothing_behind_it(self, policy: PolicyModel) -> None:
        row = sequences(policy.vocab_size)[1]
        other = row.clone()
        other[12:] = (other[12:] + 1) % policy.vocab_size
        first, second = self.logits(policy, [row, other])
        self.close(first[:12], second[:12])
        assert float((first[12:] - second[12:]).abs().max()) > self.tolerance

    @pytest.mark.parametrize("slots", [[2, 3, 4], [5, 0, 2]], ids=["neighbors", "scattered"])
    def test_incremental_decoding_over_ragged_rows_equals_the_full_forward(
        self, policy: PolicyModel, slots: list[int]
    ) -> None:
        rows = sequences(policy.vocab_size)
        expected = self.logits(policy, rows)
        cache = policy.new_cache(6, CAPACITY)
        past = [0, 0, 0]
        for chunk in ([5, 11, 2], [1, 1, 1], [1, 1, 1], [4, 1, 6], [1, 16, 0], [5, 0, 0]):
            pieces = [row[start : start + count] for row, start, count in zip(rows, past, chunk, strict=True)]
            hidden_BTD = self._forward(policy, cache, pieces, slots, past)
            for row, count in enumerate(chunk):
                self.close(policy.logits(hidden_BTD[row, :count]), expected[row][past[row] : past[row] + count])
                past[row] += count
        assert past == list(LENGTHS)

    def test_a_copied_prefix_continues_as_its_source(self, policy: PolicyModel) -> None:
        rows = sequences(policy.vocab_size)
        cache = policy.new_cache(4, CAPACITY)
        self._forward(policy, cache, [rows[1][:20], rows[0][:15]], [0, 1], [0, 0])
        cache.copy(0, [3, 1], 14)
        tails = [rows[1][14:18], torch.cat([rows[1][14:15], rows[0][:2]])]
        hidden_BTD = self._forward(policy, cache, tails, [3, 1], [14, 14])
        for row, tail in enumerate(tails):
            (whole,) = self.logits(policy, [torch.cat([rows[1][:14], tail])])
            self.close(policy.logits(hidden_BTD[row, : len(tail)]), whole[14:])

    def test_a_row_may_fill_the_capacity(self, policy: PolicyModel) -> None:
        source = torch.Generator().manual_seed(5)
        row = torch.randint(0, policy.vocab_size, (CAPACITY,), generator=source)
        (expected,) = self.logits(policy, [row])
        cache = policy.new_cache(2, CAPACITY)
        self._forward(policy, cache, [row[:-1], row[:3]], [0, 1], [0, 0])
        hidden_BTD = self._forward(policy, cache, [row[-1:], row[3:6]], [0, 1], [CAPACITY - 1, 3])
        self.close(policy.logits(hidden_BTD[0, :1]), expected[-1:])

    def test_the_state_dict_carries_all_weights(self, policy: PolicyModel) -> None:
        rows = sequences(policy.vocab_size)
        other = self.build()
        other.eval()
        with torch.no_grad():
            for weight in other.parameters():
                weight.mul_(0.5)
        assert float((self.logits(other, rows)[0] - self.logits(policy, rows)[0]).abs().max()) > self.tolerance
        other.load_state_dict({name: tensor.clone() for name, tensor in policy.state_dict().items()})
        self.close(self.logits(other, rows)[0], self.logits(policy, rows)[0])

    def _forward(
        self, policy: PolicyModel, cache: object, pieces: list[torch.Tensor], slots: list[int], past: list[int]
    ) -> torch.Tensor:
        with torch.no_grad():
            return policy.trunk(
                *padded(pieces),
                cache=cache,  # type: ignore[arg-type]
                slots_B=torch.tensor(slots),
                past_B=torch.tensor(past),
            ).hidden_BTD

    def test_a_dense_model_records_no_routes(self, policy: PolicyModel) -> None:
        ids_BT, lengths_B = padded(sequences(policy.vocab_size))
        routes = policy.trunk(ids_BT, lengths_B, want_routes=True).routes_BTLK
        assert (routes is None) == (policy.routes is None)


class RoutedModelContract(ModelContract):
    """For policies whose `routes` is not None: what recording and replaying expert ids means."""

    def test_recorded_routes_have_the_declared_shape(self, policy: PolicyModel) -> None:
        ids_BT, lengths_B = padded(sequences(policy.vocab_size))
        shape = policy.routes
        assert shape is not None
        routes = policy.trunk(ids_BT, lengths_B, want_routes=True).routes_BTLK
        assert routes is not None and routes.dtype == shape.dtype
        assert routes.shape == (*ids_BT.shape, shape.layers, shape.top_k)
        assert int(routes.max()) < shape.experts
        assert policy.trunk(ids_BT, lengths_B).routes_BTLK is None

    def test_replaying_own_routes_changes_nothing(self, policy: PolicyModel) -> None:
        ids_BT, lengths_B = padded(sequences(policy.vocab_size)[1:2])
        with torch.no_grad():
            own = policy.trunk(ids_BT, lengths_B, want_routes=True)
            replayed = policy.trunk(ids_BT, lengths_B, replay_BTLK=own.routes_BTLK, want_routes=True)
        self.close(replayed.hidden_BTD, own.hidden_BTD)
        assert torch.equal(replayed.routes_BTLK, own.routes_BTLK)  # type: ignore[arg-type]
        assert own.own_BTLK is None
        assert torch.equal(_sorted(replayed.own_BTLK), _sorted(own.routes_BTLK))

    def test_an_id_that_the_router_has_turned_away_from_gives_its_place_to_the_router_s_own(
        self, policy: PolicyModel
    ) -> None:
        """No gate reaches a thousand times another's floor and every one a billionth: nothing is kept, or all."""
        ids_BT, lengths_B = padded(sequences(policy.vocab_size)[1:2])
        with torch.no_grad():
            own = policy.trunk(ids_BT, lengths_B, want_routes=True)
            assert own.routes_BTLK is not None
            shifted = torch.roll(own.routes_BTLK.long(), 1, dims=1).to(own.routes_BTLK.dtype)
            all_kept, none_kept = (
                policy.trunk(ids_BT, lengths_B, replay_BTLK=shifted, replay_tau=tau, want_routes=True)
                for tau in (1e-9, 1e9)
            )
            same = policy.trunk(ids_BT, lengths_B, replay_BTLK=own.routes_BTLK, replay_tau=1.0, want_routes=True)
        assert torch.equal(all_kept.routes_BTLK, shifted)  # type: ignore[arg-type]
        assert torch.equal(_sorted(none_kept.routes_BTLK), _sorted(own.routes_BTLK))
        self.close(none_kept.hidden_BTD, own.hidden_BTD)
        assert torch.equal(same.routes_BTLK, own.routes_BTLK)  # type: ignore[arg-type]

    def test_replayed_routes_are_honored(self, policy: PolicyModel) -> None:
        ids_BT, lengths_B = padded(sequences(policy.vocab_size)[1:2])
        with torch.no_grad():
            own = policy.trunk(ids_BT, lengths_B, want_routes=True)
            assert own.routes_BTLK is not None
            shifted = torch.roll(own.routes_BTLK.long(), 1, dims=1).to(own.routes_BTLK.dtype)
            replayed = policy.trunk(ids_BT, lengths_B, replay_BTLK=shifted, want_routes=True)
        assert torch.equal(replayed.routes_BTLK, shifted)  # type: ignore[arg-type]
        assert float((replayed.hidden_BTD - own.hidden_BTD).abs().max()) > 10 * self.tolerance

    def test_replay_leaves_a_gradient_to_the_routers(self, policy: PolicyModel) -> None:
        ids_BT, lengths_B = padded(sequences(policy.vocab_size)[1:2])
        free = policy.trunk(ids_BT, lengths_B, want_routes=True)
        grads = []
        for replay in (None, free.routes_BTLK):
            hidden_BTD = policy.trunk(ids_BT, lengths_B, replay_BTLK=replay).hidden_BTD
            weights = list(policy.parameters())
            found = torch.autograd.grad(hidden_BTD.square().sum(), weights, allow_unused=True)
            grads.append([torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)])
        for own, replayed in zip(*grads, strict=True):
            assert torch.allclose(own, replayed, rtol=1e-3, atol=1e-3 * float(own.abs().max()) + 1e-7)


def _sorted(routes_BTLK: torch.Tensor | None) -> torch.Tensor:
    """Each token's experts as a set."""
    assert routes_BTLK is not None
    return routes_BTLK.long().sort(-1).values
