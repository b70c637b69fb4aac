"""What a step reports: sums over trained tokens of all ranks, turned into finite floats.

Legend: N trained tokens of a micro-batch. Ranks add up the same fixed list of sums, so a rank without a micro-batch
takes part like any other. Parity (RL.md section 4) is compared where `TrainSequence.comparable` allows it, which the
loop decides from versions and swaps; off-policyness is the importance weight's own metric.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from composer_plugin_policy.batching import MicroBatch
from composer_plugin_policy.ranks import Ranks
from composer_plugin_policy.scoring import TokenScores, entropy

SUMS = (
    "loss",
    "trained",
    "forwarded",
    "entropy",
    "correct",
    "weighed",
    "w",
    "w_squared",
    "capped",
    "clips",
    "clipped",
    "rerouted",
    "disagreed",
    "routed",
    "rows",
    "masked_rows",
    "masked",
    "feedback",
    "taught",
    "lessons",
)
PARITY_BAR = 1e-5
"""How far apart a token's two log-probabilities are at most in fp32 (RL.md section 4); in 8 bits some are further."""
WEIGHT_LIMIT = 1e6
"""Importance weights are reported as at most this when the algorithm has no cap, so that the figure stays finite."""


class ParityPool:
    """The latest comparable tokens of a stage: one step has too few for a 99.9th percentile."""

    def __init__(self, size: int = 1 << 20) -> None:
        self._size = size
        self._deltas = torch.zeros(0)

    def add(self, deltas: torch.Tensor) -> dict[str, float]:
        """Take a step's deltas in; returns p99, p99.9 (nearest rank) and the share above the bar of what is held."""
        self._deltas = torch.cat([self._deltas, deltas.cpu()])[-self._size :]
        return {
            "parity_p99": self._below(0.99),
            "parity_p999": self._below(0.999),
            "parity_apart_share": float((self._deltas > PARITY_BAR).double().mean()),
        }

    def _below(self, share: float) -> float:
        return float(self._deltas.kthvalue(math.ceil(share * len(self._deltas))).values)


class Tally:
    """Sums of one step on one rank; `reduce` makes them the sums of all ranks."""

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self._device, self._ranks = device, ranks
        self._sums = dict.fromkeys(SUMS, torch.zeros((), dtype=torch.float64, device=device))
        self._parity: list[torch.Tensor] = []

    def __getitem__(self, name: str) -> float:
        return float(self._sums[name])

    def add(self, **values: torch.Tensor | float) -> None:
        """Add to sums by name; tensors are summed over all their entries."""
        for name, value in values.items():
            self._sums[name] = self._sums[name] + (
                value.detach().double().sum() if isinstance(value, torch.Tensor) else value
            )

    def add_micro_batch(self, micro: MicroBatch, scores: TokenScores, loss: torch.Tensor) -> None:
        """What every objective reports."""
        different, routed = scores.rerouted
        self.add(
            loss=loss,
            trained=float(len(micro.targets_N)),
            forwarded=micro.lengths_B,
            rerouted=float(different),
            disagreed=float(scores.disagreed),
            routed=float(routed),
            rows=float(len(micro.rows)),
        )

    def add_prediction(self, micro: MicroBatch, scores: TokenScores) -> None:
        """What stages of plain prediction report."""
        self.add(correct=scores.logits_NV.argmax(-1) == micro.targets_N)

    def add_policy(self, micro: MicroBatch, scores: TokenScores, config: Any, masked_N: torch.Tensor) -> None:
        """What rl stages report: entropy, importance weights, what was clipped, and parity with the sampler."""
        self.add(entropy=entropy(scores.logits_NV, micro.temperature))
        cap = getattr(config, "cap", None)
        if hasattr(config, "clip_low") and scores.logp_N.retains_grad:
            grad_N = scores.logp_N.grad
            self.add(clips=~masked_N, clipped=(grad_N == 0) & (micro.advantage_N != 0) & ~masked_N)
        if micro.behavior_N is None:
            return
        delta_N = scores.logp_N.detach() - micro.behavior_N
        w_N = delta_N.exp().clamp(max=WEIGHT_LIMIT if cap is None else cap)
        self.add(weighed=float(len(w_N)), w=w_N, w_squared=w_N.double() ** 2)
        if cap is not None:
            self.add(capped=delta_N > math.log(cap))
        self.add_parity(micro, scores)

    def add_parity(self, micro: MicroBatch, scores: TokenScores) -> None:
        """Distance to the sampler's log-probabilities, where the two may be compared."""
        if micro.behavior_N is not None:
            delta_N = scores.logp_N.detach() - micro.behavior_N
            self._parity.append(delta_N[micro.comparable_N].abs())

    def reduce(self) -> None:
        """Sum over ranks."""
        vector = torch.stack([self._sums[name] for name in SUMS])
        self._ranks.sum([vector])
        self._sums = dict(zip(SUMS, vector.unbind(), strict=True))

    def parity(self, pool: ParityPool) -> dict[str, float]:
        """|own - sampler's log-probability|: the pool's figures, and this step's median and largest."""
        deltas = self._ranks.gather(torch.cat([torch.zeros(0, device=self._device), *self._parity]))
        found = {"parity_tokens": float(len(deltas))}
        if len(deltas):
            found |= pool.add(deltas)
            found["parity_median"] = float(deltas.median())
            found["parity_max"] = float(deltas.max())
        return found

    def common(self, wall_s: float) -> dict[str, float]:
        """Loss, counts and speed; call after `reduce`."""
        found = {
            "loss": self["loss"],
            "tokens": self["forwarded"],
            "trained_tokens": self["trained"],
            "tokens_per_s": self["forwarded"] / max(wall_s, 1e-9),
            "step_s": wall_s,
        }
        if self["routed"]:
            found["rerouted_share"] = self["rerouted"] / self["routed"]
            found["route_disagreement_share"] = self["disagreed"] / self["routed"]
        return found

    def prediction(self) -> dict[str, float]:
        """Mean negative log-likelihood and accuracy over trained tokens."""
        return {"nll": self["loss"], "accuracy": self["correct"] / max(1.0, self["trained"])}

    def masks(self) -> dict[str, float]:
        """What sequence masks left out."""
        return {
            "masked_sequences": self["masked_rows"],
            "masked_share": self["masked_rows"] / max(1.0, self["rows"]),
            "masked_tokens": self["masked"],
        }

    def policy(self) -> dict[str, float]:
        """Means over the tokens that were forwarded: those of groups that teach something."""
        found = {"entropy": self["entropy"] / max(1.0, self["trained"])} if self["trained"] else {}
        if self["taught"]:
            found |= {"feedback_kl": self["feedback"] / self["taught"], "feedback_turns": self["lessons"]}
        if self["clips"]:
            found["clipped_share"] = self["clipped"] / self["clips"]
        if self["weighed"]:
            found["weight_mean"] = self["w"] / self["weighed"]
            found["weight_capped_share"] = self["capped"] / self["weighed"]
            found["weight_effective_share"] = self["w"] ** 2 / max(self["weighed"] * self["w_squared"], 1e-300)
        return found


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """Those that are finite: a skipped step has a loss that is not."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
