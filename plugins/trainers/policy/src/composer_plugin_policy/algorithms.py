"""Advantages: from the rewards of a group's valid members to one number for each. No torch.

With n members, mean m and deviation s (population) of a group's rewards r:

- dr_grpo: r_i - m. No division by the deviation, no length term (Dr. GRPO, Liu et al. 2025).
- grpo: (r_i - m) / (s + epsilon) (GRPO, Shao et al. 2024; its mean per answer length is not used here).
- rloo: r_i - mean of the others = n / (n - 1) x (r_i - m) (REINFORCE leave-one-out, Kool et al. 2019).

- ppo_clip: that of dr_grpo, which stands in for a value network.
- dapo, gspo, cispo: that of grpo, as their papers have it.

Equal rewards give exact zeros, so that rounding never turns a flat group into a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from composer_plugin_policy.config import PolicyGradientConfig


class Divides(Protocol):
    """Settings of an algorithm that divides by the deviation."""

    @property
    def epsilon(self) -> float:
        """Added to it."""
        ...


def dr_grpo(rewards: Sequence[float], config: Any) -> list[float]:
    """r_i - m."""
    return _centered(rewards)


def grpo(rewards: Sequence[float], config: Divides) -> list[float]:
    """(r_i - m) / (s + epsilon)."""
    centered = _centered(rewards)
    deviation = math.sqrt(math.fsum(value * value for value in centered) / len(centered))
    return [value / (deviation + config.epsilon) for value in centered]


def rloo(rewards: Sequence[float], config: PolicyGradientConfig) -> list[float]:
    """n / (n - 1) x (r_i - m); 0 for a group of one, which has no others."""
    others = max(1, len(rewards) - 1)
    return [value * len(rewards) / others for value in _centered(rewards)]


def _centered(rewards: Sequence[float]) -> list[float]:
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]
