"""What two findings ask beside differences: a slope over the logarithm of tokens, and a rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from composer_core import statistics
from composer_core.noise import bits, key_of, shuffled
from composer_core.statistics import mean

Point = tuple[float, float]


@frozen
class Slope:
    """A straight line through points, by least squares; the interval resamples points."""

    value: float
    low: float
    high: float
    at_one: float
    """The line where x is 0."""


def slope(points: Sequence[Point], seed: int = 0) -> Slope:
    """Of y over x.

    Raises:
        ValueError: fewer than two different x.
    """
    if len({x for x, _ in points}) < 2:
        raise ValueError("a slope needs two different x")
    key, size, found = key_of("slope", seed), len(points), []
    for resample in range(statistics.RESAMPLES):
        drawn = [points[bits(key, resample * size + place) % size] for place in range(size)]
        if len({x for x, _ in drawn}) > 1:
            found.append(_least_squares(drawn)[0])
    value, at_one = _least_squares(points)
    return Slope(value, statistics.percentile(found, 0.025), statistics.percentile(found, 0.975), at_one)


def _least_squares(points: Sequence[Point]) -> Point:
    x_mean, y_mean = mean([x for x, _ in points]), mean([y for _, y in points])
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    value = sum((x - x_mean) * (y - y_mean) for x, y in points) / spread
    return value, y_mean - value * x_mean


@frozen
class Correlation:
    """Spearman's rank correlation, and the share of orders of y that give one as far from 0."""

    value: float
    p: float
    count: int


def rank_correlation(points: Sequence[Point], seed: int = 0) -> Correlation:
    """Ties share the mean of their ranks.

    Raises:
        ValueError: fewer than three points, or all of an axis are equal.
    """
    xs, ys = ranks([x for x, _ in points]), ranks([y for _, y in points])
    if len(points) < 3 or len(set(xs)) < 2 or len(set(ys)) < 2:
        raise ValueError("a rank correlation needs three points that differ")
    value = _correlation(xs, ys)
    places = list(range(len(ys)))
    orders = (shuffled(places, key_of("ranks", seed, number)) for number in range(statistics.RESAMPLES))
    as_far = sum(abs(_correlation(xs, [ys[place] for place in order])) >= abs(value) - 1e-12 for order in orders)
    return Correlation(value, (as_far + 1) / (statistics.RESAMPLES + 1), len(points))


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest."""
    ordered = sorted(values)
    return [mean([place + 1 for place, other in enumerate(ordered) if other == value]) for value in values]


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    x_mean, y_mean = mean(xs), mean(ys)
    both = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return both / math.sqrt(sum((x - x_mean) ** 2 for x in xs) * sum((y - y_mean) ** 2 for y in ys))
