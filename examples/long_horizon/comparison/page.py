"""docs/long_horizon.md out of what was measured: a table, the figure, the claim, and what did not come out as hoped.

Every sentence that judges is made from figures; the page's head says what was compared, and how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from comparison.arms import ARMS, HERE
from comparison.figures import (
    AIM_ERROR,
    AIM_TOKENS,
    LOST,
    SOLVED,
    Measured,
    Results,
    Rows,
    pooled,
    ratio,
)
from comparison.plot import Bar
from composer_core import statistics

HEAD = """# Does trained memory lose less?

An agent reads a logbook of ten pages. Each of the first two names a setting of three made-up words, every page says
with which word it is turned, the last one asks for one of the settings. A page is shown once, and nothing can be
written down but the answer. A book takes about 1,140 tokens, the window has 284. To-dos and the history file are off.
How long a summary is, and that its writer forgets one setting in 16, prompted and self imitate alike from
demonstrations; what reinforcement learning makes of both is measured. What the arms are, and what is fair about them,
stands in the example's README (`examples/long_horizon/README.md`).

![Share of held-out books solved, by arm](long_horizon.svg)
"""
SHORT = 0.01
"""Share of summaries or episodes that were cut short, from which on it is said."""
AIM_S = 3600
"""Most seconds of an arm and seed, with what it begins with."""
TITLE = "| arm | solved | error | tokens of a summary | windows filled | settings still held | seconds a seed |"
NOTES = HERE / "notes.md"
"""What a person who has read the runs has to add."""
Arms = Mapping[str, Sequence[Measured]]


def bars(found: Arms) -> list[Bar]:
    """The rows of the figure."""
    made = []
    for name, seeds in found.items():
        rows = pooled(seeds)
        each = [statistics.solve_rate(one.rows) for one in seeds]
        tokens = statistics.mean([one.summary_tokens for one in seeds])
        note = f"{tokens:.0f} tokens a summary" if tokens else ""
        low, high = statistics.interval(rows)
        made.append(Bar(ARMS[name].title, statistics.solve_rate(rows), low, high, each, note, name == "self"))
    return made


def page(results: Results, notes: str) -> str:
    """The whole page."""
    found = results.found
    count = len(next(iter(found.values())))
    rows = pooled(found["unlimited"])
    attempts = len(next(iter(rows.values())))
    lines = [
        HEAD,
        TITLE,
        "|---" * (TITLE.count("|") - 1) + "|",
        *(line(name, seeds, found["unlimited"]) for name, seeds in found.items()),
        "",
        f"{len(rows)} held-out books x {attempts} attempts over {count} seed{'s' * (count > 1)}, sampled at T = 1 and "
        "not greedily; 95 % intervals resample books. Error is the solve rate lost against the unlimited window. "
        "Still held is the share of all settings read so far, a mean over summaries: what one forgot later ones lack.",
        "",
        *(f"- {said}" for said in verdict(found, results.base_s)),
        "",
        "## Each seed",
        "| arm | solved |",
        "|---|---|",
        *(
            f"| {ARMS[name].title} | {', '.join(f'{statistics.solve_rate(one.rows):.3f}' for one in seeds)} |"
            for name, seeds in found.items()
        ),
        "",
        "## What did not come out as hoped",
        notes.strip(),
        "",
        f"`{results.command}`, {results.where}. What was measured is kept in `examples/long_horizon/results.json`; "
        "with `--page` the command makes this page of it and runs nothing.",
    ]
    return "\n".join(lines) + "\n"


def line(name: str, seeds: Sequence[Measured], unlimited: Sequence[Measured]) -> str:
    """A row of the table."""
    rows = pooled(seeds)
    low, high = statistics.interval(rows)
    solved = f"{statistics.solve_rate(rows):.3f} ({low:.3f} to {high:.3f})"
    error = "-" if name == "unlimited" else _interval(pooled(unlimited), rows)

    def of(key: str, form: str) -> str:
        return format(statistics.mean([getattr(one, key) for one in seeds]), form)

    told = [of("summary_tokens", ".1f"), of("summaries", ".1f"), of("kept", ".3f")]
    if not any(one.summary_tokens for one in seeds):
        told = ["-", told[1], "-"]
    wall = of("wall_s", ".0f") if ARMS[name].moment == "after" else "-"
    return f"| {ARMS[name].title} | {solved} | {error} | {' | '.join(told)} | {wall} |"


def _interval(unlimited: Rows, rows: Rows) -> str:
    lost, low, high = statistics.paired_interval(rows, unlimited)
    return f"{lost:.3f} ({low:.3f} to {high:.3f})"


def verdict(found: Arms, base_s: Sequence[float]) -> Iterator[str]:
    """What was aimed at, what was found, and what fell short."""
    unlimited, prompted, ours = ([one.rows for one in found[name]] for name in ("unlimited", "prompted", "self"))
    solved = statistics.mean([statistics.solve_rate(rows) for rows in unlimited])
    lost = solved - statistics.mean([statistics.solve_rate(rows) for rows in prompted])
    quoted = ratio(unlimited, prompted, ours)
    tokens = _tokens(found["self"]) / max(1e-9, _tokens(found["prompted"]))
    if quoted is None:
        yield (
            f"**No ratio of errors is quoted**: it takes an unlimited window that solves {SOLVED} (found {solved:.3f}) "
            f"and a prompted arm that loses {LOST:.2f} (found {lost:.3f})."
        )
    else:
        each = [ratio([whole], [told], [own]) for whole, told, own in zip(unlimited, prompted, ours, strict=True)]
        alone = ", ".join("none" if one is None else f"{one.value:.2f}" for one in each)
        yield (
            f"Self's error is **{quoted}** of prompted's, in a seed alone {alone}; aimed at {AIM_ERROR} or less with "
            f"the whole interval: {'met' if quoted.high <= AIM_ERROR else 'MISSED'}."
        )
    if before := ratio(unlimited, [one.rows for one in found["prompted-sft"]], ours):
        yield f"It is {before} of what prompted loses before RL."
    met = "met" if tokens <= AIM_TOKENS else "MISSED"
    yield f"Its summaries take **{tokens:.2f}** of prompted's tokens; aimed at {AIM_TOKENS} or less: {met}."
    longest = max(base + one.wall_s for seeds in found.values() for base, one in zip(base_s, seeds, strict=True))
    met = "met" if longest <= AIM_S else "MISSED"
    yield f"The longest arm took {longest:.0f} s with what it begins with; at most {AIM_S} s a seed: {met}."
    for name, seeds in found.items():
        cut, limited, silent = (
            statistics.mean([getattr(one, key) for one in seeds]) for key in ("cut", "limited", "silent")
        )
        if max(cut, limited, silent) > SHORT:
            yield (
                f"{ARMS[name].title}: {cut:.1%} of summaries met their limit, {limited:.1%} of episodes theirs, and "
                f"{silent:.1%} ended with a turn without a call."
            )
    wide = [ARMS[name].title for name, seeds in found.items() if _half_width(seeds) > 0.05]
    if wide:
        yield f"Intervals wider than 0.05 to either side: {', '.join(wide)}."


def _tokens(seeds: Sequence[Measured]) -> float:
    return statistics.mean([one.summary_tokens for one in seeds])


def _half_width(seeds: Sequence[Measured]) -> float:
    rows = pooled(seeds)
    return statistics.half_width([statistics.mean(row) for row in rows.values()])
