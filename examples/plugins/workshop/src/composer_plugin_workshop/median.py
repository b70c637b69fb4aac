"""The advantage of `workshop/median`; no torch here, since hook modules and workers import it.

With r_1 ... r_n the rewards of a group's valid members, m their median and s the mean of |r_i - m|:

    A_i = (r_i - m) / (s + 1e-6)

The median as baseline is from MC-GRPO (Kim 2026, arXiv:2601.22582): one outlier moves it less than the mean, so fewer
members of a small group get the wrong sign. The scale is ours: s and not the median of the distances, because with
rewards of 0 and 1 the latter is 0 as soon as most members agree. By it the |A_i| of every group that is not flat sum to
n, and a flat group gets exact zeros.

What to know: where fewer than half of a group succeed, failures get 0 and only successes teach; the A_i of a group do
not sum to 0.
"""

from collections.abc import Sequence
from statistics import fmean, median

from composer_plugin_workshop.config import MedianConfig

EPSILON = 1e-6
"""Keeps rounding in a group that is nearly flat from becoming an advantage."""


def advantage(rewards: Sequence[float], config: MedianConfig) -> list[float]:
    """One number for each reward of the group, in its order."""
    middle = median(rewards)
    spread = fmean(abs(reward - middle) for reward in rewards)
    return [(reward - middle) / (spread + EPSILON) for reward in rewards]
