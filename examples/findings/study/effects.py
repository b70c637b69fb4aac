"""Differences between arms, with intervals, and what may be said of them (docs/RL.md, section 8).

Both arms were asked the same tasks as often, so they are paired by task; a task's difference is the mean over seeds.
Intervals are 95 % bootstrap intervals that resample tasks. What is one number for a run is paired by seed, and its
interval is the range of the seeds.

An effect holds if its interval lies on the claimed side of 0 and so does each seed; a solve rate holds if it is
non-inferior: a mean difference of at least -0.05, known to 0.05 to either side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from composer_core import statistics
from composer_core.noise import bits, key_of
from composer_core.statistics import mean
from study.findings import NOT_WORSE, Effect
from study.reading import Table
from study.results import Result

Arms = Mapping[str, Mapping[int, Result]]
"""Arm -> seed -> result."""
Pairs = Mapping[int, Mapping[str, float]]
"""Seed -> task -> difference."""
FIGURE = "figure:"


@frozen
class Found:
    """An effect as measured."""

    effect: Effect
    treated: float
    untreated: float
    value: float
    low: float
    high: float
    seeds: Mapping[int, float]
    tasks: int
    """How many tasks it is of; 0 for a figure of whole runs."""

    @property
    def verdict(self) -> str:
        """holds, fails (it is the other way round), open, or "" where nothing is claimed."""
        sign = self.effect.sign
        if sign is None:
            return ""
        if sign == 0:
            known = max(self.high - self.value, self.value - self.low) <= -NOT_WORSE
            held = self.value >= NOT_WORSE and known and self.untreated > 0  # where nothing is solved, nothing is lost
            return "fails" if self.high < NOT_WORSE else "holds" if held else "open"
        if min(sign * self.low, sign * self.high, *(sign * one for one in self.seeds.values())) > 0:
            return "holds"
        return "fails" if max(sign * self.low, sign * self.high) < 0 else "open"


def measured(effect: Effect, arms: Arms) -> Found | None:
    """The effect over the seeds that both arms have; None if they have none, or no task in common."""
    treated, untreated = (arms.get(name.partition(":")[0], {}) for name in (effect.treated, effect.untreated))
    seeds = sorted(treated.keys() & untreated.keys())
    if effect.column.startswith(FIGURE):
        return _of_runs(effect, [(seed, treated[seed], untreated[seed]) for seed in seeds])
    tables = {
        seed: (_table(effect.treated, treated[seed]), _table(effect.untreated, untreated[seed])) for seed in seeds
    }
    first = {seed: _differences(effect, *pair, effect.bugs) for seed, pair in tables.items()}
    last = {seed: _differences(effect, *pair, effect.less_bugs) for seed, pair in tables.items()}
    parts = [pooled(first), pooled(last)] if effect.less_bugs else [pooled(first)]
    if not all(parts):
        return None

    def value(groups: Sequence[Sequence[float]]) -> float:
        return mean(groups[0]) - (mean(groups[1]) if effect.less_bugs else 0.0)

    low, high = interval(parts, value)
    rest = last if effect.less_bugs else {}
    each = {seed: value([[*first[seed].values()], [*rest.get(seed, {}).values()]]) for seed in seeds}
    ours, theirs = (
        mean([float(row[effect.column] or 0.0) for seed in seeds for row in _rows(effect, tables[seed][side])])
        for side in (0, 1)
    )
    return Found(effect, ours, theirs, value(parts), low, high, each, sum(map(len, parts)))


def pooled(pairs: Pairs) -> list[float]:
    """A task's mean difference over the seeds that have it."""
    found: dict[str, list[float]] = {}
    for one in pairs.values():
        for task, value in one.items():
            found.setdefault(task, []).append(value)
    return [mean(values) for _, values in sorted(found.items())]


def interval(
    groups: Sequence[Sequence[float]], value: Callable[[Sequence[Sequence[float]]], float], seed: int = 0
) -> tuple[float, float]:
    """2.5 and 97.5 % of `value` over resamples of each group by itself."""
    key = key_of("findings", seed)
    size, found = sum(map(len, groups)), []
    for resample in range(statistics.RESAMPLES):
        at, drawn = resample * size, []
        for group in groups:
            drawn.append([group[bits(key, at + place) % len(group)] for place in range(len(group))])
            at += len(group)
        found.append(value(drawn))
    return statistics.percentile(found, 0.025), statistics.percentile(found, 0.975)


def _table(name: str, result: Result) -> Table:
    return result.before if name.endswith(":before") else result.after


def _rows(effect: Effect, table: Table) -> list[dict[str, float | None]]:
    return [
        row
        for row in table.values()
        if row.get(effect.column) is not None and effect.bugs in (None, row["bugs"]) and not effect.less_bugs
    ]


def _differences(effect: Effect, treated: Table, untreated: Table, bugs: int | None) -> dict[str, float]:
    found = {}
    for task in treated.keys() & untreated.keys():
        ours, theirs = treated[task].get(effect.column), untreated[task].get(effect.column)
        if ours is not None and theirs is not None and bugs in (None, treated[task]["bugs"]):
            found[task] = ours - theirs
    return found


def _of_runs(effect: Effect, runs: Sequence[tuple[int, Result, Result]]) -> Found | None:
    name = effect.column.removeprefix(FIGURE)
    pairs = {
        seed: (ours.figures[name], theirs.figures[name])
        for seed, ours, theirs in runs
        if name in ours.figures and name in theirs.figures
    }
    if not pairs:
        return None
    each = {seed: ours - theirs for seed, (ours, theirs) in pairs.items()}
    levels = mean([pair[0] for pair in pairs.values()]), mean([pair[1] for pair in pairs.values()])
    return Found(effect, levels[0], levels[1], mean([*each.values()]), min(each.values()), max(each.values()), each, 0)
