"""Evaluation statistics: plain, seeded, clustered by task (RL.md section 8).

Rows are tasks; each holds the outcomes (1 solved, 0 failed) of its valid attempts. Void attempts are never rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from composer_core.noise import bits, key_of

Rows = Mapping[str, Sequence[int]]
RESAMPLES = 2000


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def solve_rate(rows: Rows) -> float:
    """Mean over tasks of the mean over attempts."""
    return mean([mean(row) for row in rows.values() if row])


def interval(rows: Rows, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of `solve_rate`, resampling tasks."""
    return bootstrap([mean(row) for row in rows.values() if row], seed)


def paired_interval(before: Rows, after: Rows, seed: int = 0) -> tuple[float, float, float]:
    """Mean difference after - before over the tasks that both hold, and its 95 % bootstrap interval."""
    shared = sorted(set(before) & set(after))
    gains = [mean(after[task]) - mean(before[task]) for task in shared if before[task] and after[task]]
    return (mean(gains), *bootstrap(gains, seed))


def half_width(clusters: Sequence[float]) -> float:
    """Of the 95 % normal interval around the mean of independent clusters' means; 0 when there are fewer than two."""
    size = len(clusters)
    if size < 2:
        return 0.0
    center = mean(clusters)
    return 1.96 * math.sqrt(sum((value - center) ** 2 for value in clusters) / (size - 1) / size)


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile interval (2.5 %, 97.5 %) of the mean."""
    if not values:
        return 0.0, 0.0
    size, key = len(values), key_of("bootstrap", seed)
    means = []
    for resample in range(RESAMPLES):
        base = resample * size
        means.append(sum(values[bits(key, base + i) % size] for i in range(size)) / size)
    means.sort()
    return means[int(0.025 * RESAMPLES)], means[math.ceil(0.975 * RESAMPLES) - 1]


def pass_at_k(rows: Rows, k: int) -> float | None:
    """Unbiased estimator 1 - C(n - c, k) / C(n, k), averaged over tasks with at least k attempts.

    Source: Chen et al. 2021 (HumanEval), section 2.1. None when no task has k attempts.
    """
    estimates = [
        1.0 - math.comb(len(row) - sum(row), k) / math.comb(len(row), k) for row in rows.values() if len(row) >= k
    ]
    return mean(estimates) if estimates else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie (nearest rank); 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
