"""docs/findings.md out of the committed results: each claim beside what was found of it, and what was not.

Every sentence that judges is made from figures. Why something did not come out is nobody's figure: a remark says what
we think, and the page says that it is a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from composer_core.statistics import mean
from study import plots
from study.curves import Correlation, Point, Sample, least_squares, rank_correlation, slope
from study.effects import SEEDS, Arms, Found, measured, signed
from study.findings import FINDINGS, Finding
from study.results import Result

HEAD = """# Published findings, small

Seven things that were said of how Composer came to be, asked again of a policy of about a million parameters (of 0.2
million in finding 6) on two cores. Tasks, arms and what is built in stand in the example's README
(`examples/findings/README.md`). All is sampled at temperature 1. Nothing here says what a large model does.

How to read a row:

- An effect is a treated arm less an untreated one with the same tasks, seeds and steps, and but for finding 5 from the
  same checkpoint; in finding 1 it is after reinforcement learning less before.
- In parentheses behind the difference is its 95 % bootstrap interval over tasks, for slopes over steps; where a run
  gives one number, the range of the seeds. Each seed's own value follows, in brackets where its own interval holds 0,
  and how many tasks the effect is of.
- A claim holds if the interval is on its side of 0, and each seed's own interval is, or, of one number for a run, all
  three seeds are. On the other side by the same rule, it is the other way round; else it is not shown.
- A solve rate is held to be no worse than -0.05, in each seed, known to 0.05, and only where at least 0.3 are solved
  without.
- A rank correlation holds if at most 5 % of the ways to reorder the arms within each seed give one as low.
- Directions are judged and amounts are not: these stand in the tables.

```text
pip install ./examples/findings                 # beside the plugins, as `make` installs them
python examples/findings/findings.py --page     # this page again, of examples/findings/results
python examples/findings/findings.py effort --seeds 1 --results build/again --runs build/runs --out build
                                                # measures one finding again; without its name, all of them
```
"""
Judged = Mapping[str, Sequence[Found | Correlation]]
"""Key of a finding -> its rows."""
FURTHER: Mapping[str, Sequence[str]] = {
    "scaling": ("mean reward for each doubling of tokens", "best of 16 for each doubling of tokens"),
    "pretraining": ("rank correlation of loss and solve rate",),
}
"""Finding -> titles of what is asked beside differences of arms."""
GROUP_SIZE = 16
"""Of the groups that are in the curve."""
TITLE = "| effect | treated | untreated | difference | seeds | tasks | claim |"
SAID = {"holds": "holds", "fails": "**the other way round**", "open": "**not shown**", "": "-"}


def arms_of(key: str, results: Sequence[Result]) -> Arms:
    """Arm -> seed -> result of one finding."""
    found: dict[str, dict[int, Result]] = {}
    for one in results:
        if one.finding == key:
            found.setdefault(one.arm, {})[one.seed] = one
    return found


def judge(results: Sequence[Result]) -> Judged:
    """All that each finding asks and that has results: thousands of resamples, so once for the page and its figures."""
    return {key: found(finding, arms_of(key, results)) for key, finding in FINDINGS.items()}


def page(results: Sequence[Result], judged: Judged, remarks: Mapping[str, str]) -> str:
    """The whole page; `remarks` are what we think of findings, by key."""
    parts = [HEAD, *overview(results, judged)]
    for key in FINDINGS:
        parts += ["", *section(key, judged[key], arms_of(key, results), remarks.get(key, ""))]
    return "\n".join(parts) + "\n"


def overview(results: Sequence[Result], judged: Judged) -> Iterator[str]:
    yield from ("| | claimed | seeds | hold | do not |", "|---|---|---|---|---|")
    for key, finding in FINDINGS.items():
        asked = [effect.title for effect in finding.effects if effect.sign is not None] + [*FURTHER.get(key, ())]
        held = f"{sum(one.verdict == 'holds' for one in judged[key])} of {len(asked)}" if judged[key] else "not run yet"
        seeds, missed = len(seeds_of(finding, arms_of(key, results))), "; ".join(missing(judged[key])) or "-"
        yield f"| {finding.number} | {finding.title} | {seeds} | {held} | {missed} |"


def missing(rows: Sequence[Found | Correlation]) -> list[str]:
    """Titles of what was claimed and did not come out."""
    return [one.title for one in rows if one.verdict in ("open", "fails")]


def seeds_of(finding: Finding, arms: Arms) -> list[int]:
    """Seeds that every arm has."""
    return sorted(set.intersection(*(set(arms.get(name, {})) for name in finding.arms)))


def found(finding: Finding, arms: Arms) -> list[Found | Correlation]:
    """All that the finding asks and that has results."""
    effects = [one for effect in finding.effects if (one := measured(effect, arms))]
    return [*effects, *further(finding, arms)] if effects else []


def section(key: str, rows: Sequence[Found | Correlation], arms: Arms, remark: str) -> Iterator[str]:
    """One finding."""
    finding = FINDINGS[key]
    yield from (f"## {finding.number}. {finding.title}", "", f"**Claimed.** {finding.claim} ({finding.source})", "")
    yield from (f"**Run.** {finding.ran}", "")
    if not rows:
        yield f"**Not run yet.** `{command(key)}` makes what is missing."
        return
    yield from (f"![{finding.title}](findings/{key}.svg)", "", TITLE, "|---" * (TITLE.count("|") - 1) + "|")
    yield from (row(one) for one in rows)
    yield ""
    yield from verdict(key, rows, seeds_of(finding, arms), remark)
    yield from made(key, arms)


def row(one: Found | Correlation) -> str:
    """A line of the table."""
    if isinstance(one, Correlation):
        each = ", ".join(f"{value:+.2f}" for value in one.seeds.values())
        told = f"{one.value:+.2f} over {one.count} runs, p = {one.p:.3f}"
        return f"| {one.title} | - | - | {told} | {each} | - | {SAID[one.verdict]} |"
    levels = [f"{level:.3g}" for level in one.levels] if one.levels else ["-", "-"]
    each = ", ".join(
        signed(span.value) if span.beyond_0(1) or span.beyond_0(-1) else f"({signed(span.value)})"
        for span in one.seeds.values()
    )
    return f"| {one.title} | {' | '.join(levels)} | {one.all} | {each} | {one.tasks or '-'} | {SAID[one.verdict]} |"


def further(finding: Finding, arms: Arms) -> list[Found | Correlation]:
    """What a finding asks beside differences of arms."""
    if finding.plot == "scaling":
        seeds = arms.get("trained", {})
        heights = (lambda won, size: won / size), (lambda won, size: float(won > 0))
        slopes = [slope(title, curve(seeds, y)) for title, y in zip(FURTHER["scaling"], heights, strict=True)]
        return [one for one in slopes if one]
    if finding.plot == "pretraining":
        correlation = rank_correlation(FURTHER["pretraining"][0], pretraining_points(arms))
        return [correlation] if correlation else []
    return []


def curve(seeds: Mapping[int, Result], y: Callable[[int, int], float]) -> dict[int, list[Sample]]:
    """Seed -> a sample for each group in `_later`."""
    return {
        seed: [Sample(math.log2(tokens), y(won, size), bugs, step) for step, tokens, bugs, won, size in _later(result)]
        for seed, result in seeds.items()
    }


def _later(result: Result) -> list[list[int]]:
    """Groups of 16 after the first step, before which nothing was spent."""
    return [group for group in result.groups if group[1] and group[4] == GROUP_SIZE]


def pretraining_points(arms: Arms) -> dict[int, list[Point]]:
    """Seed -> (loss after imitation, solve rate after reinforcement learning) of each arm that has it."""
    found: dict[int, list[Point]] = {}
    for seeds in arms.values():
        for seed, one in seeds.items():
            if point := _point(one):
                found.setdefault(seed, []).append(point)
    return found


def _point(result: Result) -> Point | None:
    if "imitation_nll" not in result.figures:
        return None
    return result.figures["imitation_nll"], mean([float(row["solved"] or 0.0) for row in result.after.values()])


def verdict(key: str, rows: Sequence[Found | Correlation], seeds: Sequence[int], remark: str) -> Iterator[str]:
    """What was reproduced, what was not, and what we think of it."""
    finding = FINDINGS[key]
    missed = missing(rows)
    asked = [*(effect.title for effect in finding.effects), *FURTHER.get(key, ())]
    unread = [title for title in asked if title not in [one.title for one in rows]]
    if seeds and not missed and not unread:
        yield f"**Reproduced**, with {len(seeds)} seed{'s' * (len(seeds) != 1)}."
    if missed:
        yield f"**Not reproduced**: {'; '.join(missed)}."
    if unread:
        yield f"**Not measured yet**: {'; '.join(unread)}."
    if len(seeds) < SEEDS:
        yield f"Of three seeds {len(seeds)} {'has' if len(seeds) == 1 else 'have'} every arm."
    if remark:
        yield f"What we think of it, a guess where no figure stands: {remark.strip()}"
    yield ""


def made(key: str, arms: Arms) -> Iterator[str]:
    """How, where and when; what was asked for each result stands in its file."""
    every = [one for seeds in arms.values() for one in seeds.values()]
    runs: dict[tuple[str, int], float] = {}
    for one in every:
        runs |= {(name, one.seed): wall_s for name, wall_s in one.seconds.items()}
    dates = sorted({one.date for one in every})
    voids = sum(one.figures.get("voids", 0.0) for one in every)
    void = f", {voids:.0f} attempts void" if voids else ""
    where = "; ".join(sorted({one.machine for one in every}))
    shared = ", those that are shared included" if len({name for name, _ in runs}) > len(arms) else ""
    minutes = f"{sum(runs.values()) / 60:.0f} minutes of runs{shared}"
    counts = f"{len(every)} result{'s' * (len(every) != 1)}, {minutes}{void}"
    yield f"`{command(key)}`; {', '.join(dates)}, revision {revisions(arms)}, {where}; {counts}."


def revisions(arms: Arms) -> str:
    """Those of all results; where arms differ in them, with the arms that have each set."""
    having: dict[str, list[str]] = {}
    for arm, seeds in arms.items():
        those = ", ".join(sorted({part for one in seeds.values() for part in one.revision.split(", ")}))
        having.setdefault(those, []).append(arm)
    told = [f"{those} ({', '.join(named)})" for those, named in having.items()]
    return "; ".join(told) if len(told) > 1 else ", ".join(having)


def figure(key: str, rows: Sequence[Found | Correlation], arms: Arms) -> str | None:
    """The finding's plot; None where it has no result."""
    finding = FINDINGS[key]
    if not rows:
        return None
    if finding.plot == "scaling":
        series = _scaling(arms["trained"])
        return plots.frame(series, finding.title, "log2 of tokens sampled before", "share of attempts, of groups")
    if finding.plot == "pretraining":
        series = [
            plots.Series(f"pre-training: {arm}", [*points.values()], [str(seed) for seed in points])
            for arm in finding.arms
            if (points := {seed: point for seed, one in arms.get(arm, {}).items() if (point := _point(one))})
        ]
        return plots.frame(
            series, finding.title, "loss after imitation, nats a token", "solve rate after RL; numbers are seeds"
        )
    return plots.effects([one for one in rows if isinstance(one, Found)], finding.title)


def _scaling(seeds: Mapping[int, Result]) -> list[plots.Series]:
    """Of one broken file and of two: means over groups that lie close together, and the line through all of them."""
    groups = [group for result in seeds.values() for group in _later(result)]
    named: dict[str, tuple[int, Callable[[int, int], float]]] = {
        "mean, one broken file": (1, lambda won, size: won / size),
        "mean, two": (2, lambda won, size: won / size),
        "best of 16, two": (2, lambda won, size: float(won > 0)),
    }
    series = []
    for name, (kind, y) in named.items():
        points = [(math.log2(tokens), y(won, size)) for _, tokens, bugs, won, size in groups if bugs == kind]
        series.append(plots.Series(name, _binned(points), line=least_squares(points)))
    return series


def _binned(points: Sequence[tuple[float, float]], width: float = 0.5) -> list[tuple[float, float]]:
    """Means of points whose x lie close together, since a single group is mostly noise."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        bins.setdefault(math.floor(point[0] / width), []).append(point)
    return [(mean([x for x, _ in one]), mean([y for _, y in one])) for _, one in sorted(bins.items())]


def command(key: str) -> str:
    """What makes a finding's results."""
    first = "python examples/long_horizon/long_horizon.py && " if key == "summary" else ""
    return f"{first}python examples/findings/findings.py {key}"
