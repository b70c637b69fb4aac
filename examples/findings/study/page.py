"""docs/findings.md out of the committed results: each claim beside what was found of it, and what was not.

Every sentence that judges is made from figures. Why something did not come out is nobody's figure: `remarks.toml` holds
what we think, under the finding's key, and the page says that it is a guess.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence

from composer_core.statistics import mean
from study import plots
from study.curves import rank_correlation, slope
from study.effects import Arms, Found, measured
from study.findings import FINDINGS, Finding
from study.recipes import HERE
from study.results import Result

HEAD = """# Published findings, small

Seven things that were said of how Composer came to be, asked again of a policy of about a million parameters on two
cores. Tasks, arms and what is built in stand in the example's README (`examples/findings/README.md`). An effect is a
treated arm less an untreated one from the same checkpoint, with the same tasks, seeds and steps; intervals are 95 %
bootstrap intervals over tasks, and a seed's own value stands behind them. Nothing here says what a large model does.

```text
python examples/findings/findings.py            # all that has no result yet, three seeds
python examples/findings/findings.py effort     # one finding
python examples/findings/findings.py --page     # this page again, of examples/findings/results
```
"""
TITLE = "| effect | treated | untreated | difference | seeds | claim |"
SAID = {"holds": "holds", "fails": "**the other way round**", "open": "**not shown**", "": "-"}


def arms_of(key: str, results: Sequence[Result]) -> Arms:
    """Arm -> seed -> result of one finding."""
    found: dict[str, dict[int, Result]] = {}
    for one in results:
        if one.finding == key:
            found.setdefault(one.arm, {})[one.seed] = one
    return found


def page(results: Sequence[Result]) -> str:
    """The whole page."""
    remarks = tomllib.loads((HERE / "remarks.toml").read_text(encoding="utf-8"))
    parts = [HEAD, *overview(results)]
    for key, finding in FINDINGS.items():
        parts += ["", *section(key, finding, arms_of(key, results), remarks.get(key, ""))]
    return "\n".join(parts) + "\n"


def overview(results: Sequence[Result]) -> Iterator[str]:
    yield from ("| | finding | seeds | claimed effects that hold |", "|---|---|---|---|")
    for key, finding in FINDINGS.items():
        arms = arms_of(key, results)
        found = [one for one in effects(finding, arms) if one.verdict]
        held = f"{sum(one.verdict == 'holds' for one in found)} of {len(found)}" if found else "not run yet"
        yield f"| {finding.number} | {finding.title} | {len(seeds_of(finding, arms))} | {held} |"


def seeds_of(finding: Finding, arms: Arms) -> list[int]:
    """Seeds that every arm has."""
    return sorted(set.intersection(*(set(arms.get(name, {})) for name in finding.arms)))


def effects(finding: Finding, arms: Arms) -> list[Found]:
    return [found for effect in finding.effects if (found := measured(effect, arms))]


def section(key: str, finding: Finding, arms: Arms, remark: str) -> Iterator[str]:
    """One finding."""
    yield from (f"## {finding.number}. {finding.title}", "", f"**Claimed.** {finding.claim} ({finding.source})", "")
    yield from (f"**Run.** {finding.ran}", "")
    found = effects(finding, arms)
    if not found:
        yield f"**Not run yet.** `{command(key)}` makes what is missing."
        return
    yield from (f"![{finding.title}](findings/{key}.svg)", "", TITLE, "|---" * (TITLE.count("|") - 1) + "|")
    yield from (row(one) for one in found)
    yield ""
    yield from further(key, arms)
    yield from verdict(finding, found, seeds_of(finding, arms), remark)
    yield from made(finding, arms)


def row(one: Found) -> str:
    """A line of the table."""
    levels = [f"{one.treated:.3g}", f"{one.untreated:.3g}"] if not one.effect.less_bugs else ["-", "-"]
    difference = f"{one.value:+.3g} ({one.low:+.3g} to {one.high:+.3g})"
    each = ", ".join(f"{value:+.3g}" for value in one.seeds.values())
    return f"| {one.effect.title} | {' | '.join(levels)} | {difference} | {each} | {SAID[one.verdict]} |"


def further(key: str, arms: Arms) -> Iterator[str]:
    """What a finding asks beside differences."""
    if key == "scaling":
        for name, points in scaling_points(arms).items():
            line = slope(points)
            held = "rises" if line.low > 0 else "falls" if line.high < 0 else "is not shown to rise"
            interval = f"{line.value:+.3f} ({line.low:+.3f} to {line.high:+.3f})"
            yield f"- {name} {held}: {interval} for each doubling of tokens, over {len(points)} groups."
        yield ""
    runs = [point for one in pretraining_points(arms).values() for point in one] if key == "pretraining" else []
    if len(runs) >= 3:
        found = rank_correlation(runs)
        told = f"{found.value:+.2f} over {found.count} runs (p = {found.p:.3f})"
        yield f"- Rank correlation of loss and solve rate: {told}."
        yield ""


def scaling_points(arms: Arms) -> dict[str, list[tuple[float, float]]]:
    """(log2 of tokens, share) of every group of every seed: its mean, and its best."""
    groups = [group for result in arms.get("trained", {}).values() for group in result.groups]
    found = {"The mean": [(math.log2(tokens), won / size) for tokens, _, won, size in groups]}
    found["The best of 16"] = [(math.log2(tokens), float(won > 0)) for tokens, _, won, size in groups if size == 16]
    for bugs, name in ((1, "The mean with one broken file"), (2, "The mean with two")):
        found[name] = [(math.log2(tokens), won / size) for tokens, broken, won, size in groups if broken == bugs]
    return {name: points for name, points in found.items() if len({x for x, _ in points}) > 1}


def pretraining_points(arms: Arms) -> dict[str, list[tuple[float, float]]]:
    """Arm -> (loss after imitation, solve rate after reinforcement learning) of each seed."""
    return {
        arm: [(one.figures["imitation_nll"], _solved(one)) for one in seeds.values() if "imitation_nll" in one.figures]
        for arm, seeds in arms.items()
    }


def _solved(result: Result) -> float:
    return mean([float(row["solved"] or 0.0) for row in result.after.values()])


def verdict(finding: Finding, found: Sequence[Found], seeds: Sequence[int], remark: str) -> Iterator[str]:
    """What was reproduced, what was not, and what we think of it."""
    claimed = [one for one in found if one.verdict]
    missed = [one.effect.title for one in claimed if one.verdict != "holds"]
    unread = [effect.title for effect in finding.effects if effect not in [one.effect for one in found]]
    if not missed and not unread:
        yield f"**Reproduced**, with {len(seeds)} seed{'s' * (len(seeds) != 1)}."
    if missed:
        yield f"**Not reproduced**: {'; '.join(missed)}."
    if unread:
        yield f"**Not measured yet**: {'; '.join(unread)}."
    if len(seeds) < 3:
        yield f"Every arm has {len(seeds)} of three seeds."
    if remark:
        yield f"What we think, and did not measure: {remark.strip()}"
    yield ""


def made(finding: Finding, arms: Arms) -> Iterator[str]:
    """How, where and when."""
    every = [one for seeds in arms.values() for one in seeds.values()]
    runs: dict[tuple[str, int], float] = {}
    for one in every:
        runs |= {(name, one.seed): wall_s for name, wall_s in one.seconds.items()}
    dates, revisions = sorted({one.date for one in every}), sorted({one.revision for one in every})
    where = "; ".join(sorted({one.machine for one in every}))
    counts = f"{len(every)} results, {sum(runs.values()) / 60:.0f} minutes of runs, those that are shared included"
    commands = ", ".join(sorted({f"`{one.command}`" for one in every}))
    yield f"{commands}; {', '.join(dates)}, revision {', '.join(revisions)}, {where}; {counts}."


def figure(key: str, finding: Finding, arms: Arms) -> str | None:
    """The finding's plot; None where it has no result."""
    found = effects(finding, arms)
    if not found:
        return None
    if finding.plot == "scaling":
        return _scaling(scaling_points(arms), finding.title)
    if finding.plot == "pretraining":
        points = pretraining_points(arms)
        series = [plots.Series(f"pre-training: {arm}", points[arm]) for arm in finding.arms if points.get(arm)]
        return plots.frame(series, finding.title, "loss after imitation, nats a token", "solve rate after RL")
    return plots.effects(found, finding.title)


def _scaling(found: Mapping[str, Sequence[tuple[float, float]]], title: str) -> str:
    series = []
    for name in ("The mean", "The best of 16"):
        if points := found.get(name):
            line = slope(points)
            series.append(plots.Series(name, _binned(points), line=(line.value, line.at_one)))
    return plots.frame(series, title, "log2 of tokens sampled", "share of attempts, of groups")


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
