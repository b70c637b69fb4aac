"""What two findings ask beside differences: a slope over the logarithm of tokens, and a rank correlation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations, product

from attrs import frozen

from composer_core import statistics
from composer_core.noise import bits, key_of
from composer_core.statistics import mean
from study.effects import Found, Span

Point = tuple[float, float]


@frozen
class Sample:
    """A point of a curve, and what it shares with others."""

    x: float
    y: float
    kind: int
    """Kinds have a height of their own, and one slope."""
    step: int
    """What was measured at one step is resampled together."""


def slope(title: str, seeds: Mapping[int, Sequence[Sample]]) -> Found | None:
    """Of y over x by least squares, the mean over seeds; intervals resample the steps of each seed.

    None if a seed has no two different x of a kind, or if there is no seed.
    """
    if not seeds or any(_slope(samples) is None for samples in seeds.values()):
        return None
    drawn = {seed: [_slope(samples) or 0.0, *_resampled(samples, seed)] for seed, samples in seeds.items()}
    every = [mean(values) for values in zip(*drawn.values(), strict=True)]
    return Found(title, 1, _span(every), {seed: _span(values) for seed, values in drawn.items()})


def _span(values: Sequence[float]) -> Span:
    """The first, and the interval of the others."""
    value, *resampled = values
    return Span(value, statistics.percentile(resampled, 0.025), statistics.percentile(resampled, 0.975))


def _resampled(samples: Sequence[Sample], seed: int) -> list[float]:
    by_step: dict[int, list[Sample]] = {}
    for one in samples:
        by_step.setdefault(one.step, []).append(one)
    steps, key, found = [*by_step.values()], key_of("slope", seed), list[float]()
    draw = 0
    while len(found) < statistics.RESAMPLES:
        chosen = [steps[bits(key, draw * len(steps) + place) % len(steps)] for place in range(len(steps))]
        draw += 1
        if (drawn := _slope([one for step in chosen for one in step])) is not None:
            found.append(drawn)
    return found


def _slope(samples: Sequence[Sample]) -> float | None:
    by_kind: dict[int, list[Sample]] = {}
    for one in samples:
        by_kind.setdefault(one.kind, []).append(one)
    both = spread = 0.0
    for group in by_kind.values():
        x_mean, y_mean = mean([one.x for one in group]), mean([one.y for one in group])
        both += sum((one.x - x_mean) * (one.y - y_mean) for one in group)
        spread += sum((one.x - x_mean) ** 2 for one in group)
    return both / spread if spread else None


def least_squares(points: Sequence[Point]) -> Point | None:
    """(slope, y where x is 0) of the line through points; None if all x are equal."""
    rise = _slope([Sample(x, y, 0, 0) for x, y in points])
    if rise is None:
        return None
    return rise, mean([y for _, y in points]) - rise * mean([x for x, _ in points])


@frozen
class Correlation:
    """Spearman's rank correlation, claimed to be negative."""

    title: str
    value: float
    p: float
    """Share of the orders of y within each seed that give a value as low."""
    p_above: float
    """Share of those that give one as high."""
    seeds: Mapping[int, float]
    count: int

    @property
    def verdict(self) -> str:
        if self.p <= 0.05:
            return "holds"
        return "fails" if self.p_above <= 0.05 else "open"


def rank_correlation(title: str, seeds: Mapping[int, Sequence[Point]]) -> Correlation | None:
    """Over all seeds' points; None for fewer than three, or where all of an axis are equal.

    Ties share the mean of their ranks. Points of a seed share its tasks and its noise, so all orders within seeds
    count; those that give the same value are counted together, or ten seeds of three points would be 6^10 orders.
    """
    xs = ranks([x for points in seeds.values() for x, _ in points])
    ys = ranks([y for points in seeds.values() for _, y in points])
    if len(xs) < 3 or len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    sums, start = Counter({0.0: 1}), 0
    for points in seeds.values():
        stop = start + len(points)
        sums = _added(sums, Counter(_dot(xs[start:stop], order) for order in permutations(ys[start:stop])))
        start = stop
    ours = _dot(xs, ys)
    alone = {
        seed: _correlation(ranks([x for x, _ in points]), ranks([y for _, y in points]))
        for seed, points in seeds.items()
        if len({x for x, _ in points}) > 1 and len({y for _, y in points}) > 1
    }
    low, high = (sum(n for one, n in sums.items() if sign * one <= sign * ours) / sums.total() for sign in (1, -1))
    return Correlation(title, _correlation(xs, ys), low, high, alone, len(xs))


def _dot(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Exact for ranks, multiples of a half. Orders of the same ranks differ in it alone, so it ranks correlations."""
    return sum(x * y for x, y in zip(xs, ys, strict=True))


def _added(ones: Mapping[float, int], others: Mapping[float, int]) -> Counter[float]:
    """How many ways there are to each sum of a value of each."""
    found: Counter[float] = Counter()
    for (one, ways), (other, other_ways) in product(ones.items(), others.items()):
        found[one + other] += ways * other_ways
    return found


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest."""
    ordered = sorted(values)
    return [mean([place + 1 for place, other in enumerate(ordered) if other == value]) for value in values]


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    x_mean, y_mean = mean(xs), mean(ys)
    both = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return both / math.sqrt(sum((x - x_mean) ** 2 for x in xs) * sum((y - y_mean) ** 2 for y in ys))
