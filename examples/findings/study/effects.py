"""Differences between arms, with intervals, and what may be said of them (docs/RL.md, section 8).

Both arms were asked the same tasks as often, so they are paired by task; a task's difference is the mean over seeds.
Intervals are 95 % bootstrap intervals that resample tasks. What is one number for a run is paired by seed, and its
interval is the range of the seeds.

An effect holds if its interval lies on the claimed side of 0, and that of every seed by itself does too; what is one
number for a run has none by itself, so there three seeds must all lie on that side, which is our rule. It is the other
way round by the same measure. A solve rate holds if it is non-inferior: a mean difference of at least -0.05, in each
seed too, known to 0.05 to either side, where so much is solved that something could be lost.
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
SEEDS = 3
"""What every finding is asked with."""
FLOOR = 0.3
"""Least solve rate of the untreated arm at which -0.05 is a small part of what there is to lose."""


@frozen
class Span:
    """A value and its interval."""

    value: float
    low: float
    high: float

    def beyond_0(self, sign: int) -> bool:
        """Whether all of the interval lies on that side of 0."""
        return min(sign * self.low, sign * self.high) > 0

    def __str__(self) -> str:
        return f"{signed(self.value)} ({signed(self.low)} to {signed(self.high)})"


def signed(value: float) -> str:
    """Three digits and a sign; what means of equal numbers leave of rounding is 0."""
    return f"{round(value, 12) + 0.0:+.3g}"


@frozen
class Found:
    """An effect, or a slope, as measured."""

    title: str
    sign: int | None
    """What is claimed, as of an `Effect`."""
    all: Span
    seeds: Mapping[int, Span]
    levels: tuple[float, float] | None = None
    """Of the treated arm and of the untreated one, over what is paired; None where there are no two levels."""
    tasks: int = 0
    """How many tasks it is of; 0 for what is no table of tasks."""
    least: int = 1
    """Seeds without which it does not hold."""

    @property
    def verdict(self) -> str:
        """holds, fails (it is the other way round), open, or "" where nothing is claimed."""
        every = (self.all, *self.seeds.values())
        if self.sign is None:
            return ""
        if self.sign == 0:
            known = max(self.all.high - self.all.value, self.all.value - self.all.low) <= -NOT_WORSE
            no_worse = all(span.value >= NOT_WORSE for span in every)
            held = no_worse and known and self.levels is not None and self.levels[1] >= FLOOR
            return "fails" if self.all.high < NOT_WORSE else "holds" if held else "open"
        if len(self.seeds) < self.least:
            return "open"
        for sign, verdict in ((self.sign, "holds"), (-self.sign, "fails")):
            if all(span.beyond_0(sign) for span in every):
                return verdict
        return "open"


def measured(effect: Effect, arms: Arms) -> Found | None:
    """The effect over the seeds that both arms have; None if they have none, or no task in common."""
    treated, untreated = (arms.get(name.partition(":")[0], {}) for name in (effect.treated, effect.untreated))
    seeds = sorted(treated.keys() & untreated.keys())
    if effect.column.startswith(FIGURE):
        return _of_runs(effect, [(seed, treated[seed], untreated[seed]) for seed in seeds])
    groups = [effect.bugs, effect.less_bugs] if effect.less_bugs else [effect.bugs]
    tables = {
        seed: (_table(effect.treated, treated[seed]), _table(effect.untreated, untreated[seed])) for seed in seeds
    }
    pairs = [{seed: _differences(effect, *pair, bugs) for seed, pair in tables.items()} for bugs in groups]
    each = {seed: _span([[*group[seed].values()] for group in pairs]) for seed in seeds}
    every = _span([pooled(group) for group in pairs])
    if every is None:
        return None

    def level(side: int) -> float:
        columns = {
            seed: {task: tables[seed][side][task][effect.column] or 0.0 for task in tasks}
            for seed, tasks in pairs[0].items()
        }
        return mean(pooled(columns))

    return Found(
        effect.title,
        effect.sign,
        every,
        {seed: span for seed, span in each.items() if span},
        None if effect.less_bugs else (level(0), level(1)),
        sum(len(pooled(group)) for group in pairs),
    )


def _span(groups: Sequence[Sequence[float]]) -> Span | None:
    """The mean of the only group, or that of the first less that of the second; None where a group is empty."""

    def value(parts: Sequence[Sequence[float]]) -> float:
        return mean(parts[0]) - (mean(parts[1]) if len(parts) > 1 else 0.0)

    return Span(value(groups), *interval(groups, value)) if all(groups) else None


def pooled(pairs: Pairs) -> list[float]:
    """A task's mean over the seeds that have it."""
    found: dict[str, list[float]] = {}
    for one in pairs.values():
        for task, value in one.items():
            found.setdefault(task, []).append(value)
    return [mean(values) for _, values in sorted(found.items())]


def interval(
    groups: Sequence[Sequence[float]], value: Callable[[Sequence[Sequence[float]]], float]
) -> tuple[float, float]:
    """2.5 and 97.5 % of `value` over resamples of each group by itself."""
    key = key_of("findings", 0)
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


def _differences(effect: Effect, treated: Table, untreated: Table, bugs: int | None) -> dict[str, float]:
    found = {}
    for task in sorted(treated.keys() & untreated.keys()):  # what is resampled must not depend on hashes
        ours, theirs = treated[task].get(effect.column), untreated[task].get(effect.column)
        if ours is not None and theirs is not None and bugs in (None, treated[task].get("bugs")):
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
    every = Span(mean([*each.values()]), min(each.values()), max(each.values()))
    alone = {seed: Span(value, value, value) for seed, value in each.items()}
    return Found(effect.title, effect.sign, every, alone, levels, least=SEEDS)
