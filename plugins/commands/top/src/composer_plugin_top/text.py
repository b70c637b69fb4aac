"""The picture of a run as text: small tables that stand side by side where there is room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import pairwise
from typing import Any

from attrs import frozen
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from composer_core.printable import clock, printable

WIDTH = 100
"""Of what is printed where there is no terminal."""
BLOCKS = "▁▂▃▄▅▆▇█"
BAR = 16
GAP = 3
SHOWN = 8
"""Rows of tables that could be long."""
MOODS = {"good": "green", "warn": "yellow", "bad": "red"}

Picture = Mapping[str, Any]


def make_console() -> Console:
    return Console(highlight=False)


def printed(picture: Picture) -> str:
    out = StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, color_system=None)
    console.print(drawn(picture))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


def drawn(picture: Picture) -> RenderableType:
    return Group(_head(picture), Text(), Flow(list(_tables(picture))), *_faults(picture))


@frozen
class Flow:
    """Blocks side by side as long as there is room, then on the next line; each takes just its own width."""

    blocks: Sequence[RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line: list[RenderableType] = []
        used = 0
        for block in self.blocks:
            width = Measurement.get(console, options, block).maximum + GAP
            if line and used + width - GAP > options.max_width:
                yield from (_line(line), Text())
                line, used = [], 0
            line.append(block)
            used += width
        if line:
            yield _line(line)


def _line(blocks: Sequence[RenderableType]) -> Table:
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_row(*blocks)
    return grid


# --- the head -----------------------------------------------------------------------------------------------------


def _head(picture: Picture) -> Text:
    state = picture["state"]
    word = (state["word"], MOODS[state["mood"]])
    head = Text.assemble((printable(picture["name"]), "bold"), ": ", word, f", {picture['old']}")
    lines = [head, Text(printable(picture["folder"]), "dim"), Text(printable(_way(picture)))]
    told = picture["status"] or {}
    waits = told.get("waits_for", "") if state["word"] != "finished" else ""
    notes = [(state["note"], state["mood"]), (waits and f"waits for {waits}", "")]
    notes += [(text, "bad") for text in picture["problems"]]
    lines += [Text(printable(text), MOODS.get(mood, "")) for text, mood in notes if text]
    return Text("\n").join(line for line in lines if line)


def _way(picture: Picture) -> str:
    stage, parts = picture["stage"], []
    if stage:
        of = f" of {stage['steps']:,}" if stage["steps"] else ""
        kind = f" ({stage['kind']})" if stage["kind"] else ""
        done = "ended" if stage["ended"] else f"step {stage['step']:,}{of}"
        parts.append(f"stage {stage['name']}{kind}: {done}")
    parts.append(f"{clock(picture['run_s'])} of work")
    if stage and stage["left_s"] is not None:
        parts.append(f"about {clock(stage['left_s'])} left")
    if picture["version"] is not None:
        parts.append(f"version {picture['version']:,}")
    if picture["starts"] > 1:
        parts.append(f"{picture['starts']} starts")
    if picture["read"] < 1:
        parts.append(f"{picture['read']:.0%} of its diary read")
    return ", ".join(parts)


# --- tables -------------------------------------------------------------------------------------------------------


def _tables(picture: Picture) -> Iterable[RenderableType]:
    told = picture["status"]
    if told:
        yield from _ledger(told)
    yield _throughput(picture)
    if told:
        if told["oldest"]:
            rows = [(row["task"], _place(row), clock(row["for_s"])) for row in told["oldest"][:SHOWN]]
            yield _table("Longest under way", rows, ("task", "slot", "for"))
        for kind, parts in told["parts"].items():
            yield _parts(kind, parts)
        if told["executor"]:
            yield _table("Executor", [(name, number(value)) for name, value in told["executor"].items()])
    if picture["outcomes"]:
        total = sum(picture["outcomes"].values())
        rows = [(name, f"{count:,}", f"{count / total:.1%}") for name, count in picture["outcomes"].items()]
        yield _table("Episodes of the run", rows)
    if picture["evaluated"]:
        yield _table("Evaluations", [(name, f"{rate:.1%}") for name, rate in picture["evaluated"].items()])


def _ledger(told: Mapping[str, Any]) -> Iterable[RenderableType]:
    tables, counts = told["tables"], told["counts"]
    if "slots" in tables:
        places = (("Slots", "slots"), ("Groups", "groups"))
        now = [_table(title, _counted(tables[name])) for title, name in places if tables.get(name)]
        yield Group(*[part for table in now for part in (table, Text())][:-1])
        late = _bars("Staleness", "versions late", tables.get("staleness", {}))
        yield Group(late, Text(), _bars("Versions", "of live groups", tables.get("versions", {})))
    lines = [(name.replace("_", " "), count) for name, count in _counted(counts)]
    lines += [(f"void: {cause}", f"{count:,}") for cause, count in tables.get("voids", {}).items()]
    lines += [(f"dropped: {why}", f"{count:,}") for why, count in tables.get("dropped", {}).items() if count]
    if lines:
        yield _table(f"Ledger of {told['stage']}", lines)


def _counted(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(name, f"{count:,}") for name, count in counts.items()]


def _throughput(picture: Picture) -> Table:
    rates, metrics, series = picture["rates"], picture["metrics"], picture["series"]
    rows = [("episodes/s", number(rates["episodes"]), sparkline(series["episodes"][:-1] or series["episodes"]))]
    rows.append(("tokens/s", number(rates["tokens"]), sparkline(series["tokens"][:-1] or series["tokens"])))
    rows.append(("steps/min", number(rates["steps"] * 60), sparkline(series["steps"][:-1] or series["steps"])))
    if any(series["running"]):
        rows.append(("under way", "", sparkline([value or 0 for value in series["running"]])))
    if metrics.get("step_s") and "train_s" in metrics:
        rows.append(("trainer busy", f"{min(1.0, metrics['train_s'] / metrics['step_s']):.0%}", "of the last step"))
    if "staleness_max" in metrics:
        late = [value for value in series["staleness"] if value is not None]
        rows.append(("staleness", number(metrics["staleness_max"]), sparkline(late)))
    for name, label in (("reward_mean", "reward"), ("solve_rate", "solved")):
        if name in metrics:
            rows.append((label, number(metrics[name]), "of the last step"))
    return _table("Throughput", rows, ("", "last minute", "whole run"), left=(0, 2))


def _parts(kind: str, parts: Mapping[str, Mapping[str, float]]) -> Table:
    names = list(dict.fromkeys(name for figures in parts.values() for name in figures))
    shown = list(parts.items())[:SHOWN]
    rows = [(id, *(_figure(name, figures.get(name)) for name in names)) for id, figures in shown]
    more = [(f"and {len(parts) - SHOWN} more",)] if len(parts) > SHOWN else []
    return _table(kind.capitalize(), [*rows, *more], ("", *names))


def _figure(name: str, value: float | None) -> str:
    return f"{value:.0f}" if name == "pid" and value is not None else number(value)


def _bars(title: str, heading: str, counts: Mapping[str, int]) -> Table:
    most = max(counts.values(), default=1)
    ordered = sorted(counts.items(), key=lambda item: int(item[0]) if item[0].isdecimal() else 0)
    rows = [(name, f"{count:,}", "█" * max(1, round(count / most * BAR))) for name, count in ordered[-SHOWN:]]
    return _table(title, rows or [("none yet", "", "")], (heading, "groups", ""), left=(0, 2))


def _faults(picture: Picture) -> Iterable[RenderableType]:
    rows = [(where, plugin, f"{times:,}", error) for where, plugin, times, error in picture["faults"][:SHOWN]]
    return (
        [Text(), _table("Faults", rows, ("where", "plugin", "times", "the last one"), left=(0, 1, 3))] if rows else []
    )


def _table(title: str, rows: Sequence[Sequence[str]], head: Sequence[str] = (), left: Sequence[int] = (0,)) -> Table:
    heading = Text(printable(title))
    table = Table(
        title=heading, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.show_header = bool(head)
    for index in range(max(map(len, [head, *rows]))):
        name = head[index] if index < len(head) else ""
        table.add_column(
            Text(printable(name)), justify="left" if index in left else "right", overflow="fold", header_style="dim"
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _place(row: Mapping[str, Any]) -> str:
    return f"{number(row['group'])}/{number(row['slot'])}"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


def sparkline(values: Sequence[float], width: int = BAR) -> str:
    """A row of blocks from 0 to the largest; each stands for the mean of an equal share of the values."""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    most = max(means, default=0.0)
    return "".join(BLOCKS[round(mean / most * 7) if most else 0] for mean in means)
