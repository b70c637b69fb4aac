"""`composer-run show`: a run in a page of text, or one of its traces.

Reads the run folder only (events.jsonl, plugins.json, status.json, summary.json, traces/), so it works on a run that is
still going, was killed, or was copied from another machine. It writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from attrs import evolve
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer_core.errors import ConfigError, did_you_mean
from composer_core.history import History, StageLog, changed
from composer_core.printable import clock, printable
from composer_core.traces import decode, readable

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 100
FIRST = ("reward_mean", "solve_rate", "best_of_group", "loss", "accuracy", "turns_mean", "calls_mean", "tokens_mean")
"""Curves shown; with --all the others follow in the order in which the run reported them."""

EVALUATED = {
    "solve_rate": "solved",
    "ci95_low": "95 % low",
    "ci95_high": "high",
    "best_of_8": "best of 8",
    "turns_mean": "turns",
    "calls_mean": "calls",
    "tokens_mean": "tokens",
    "episodes": "episodes",
    "voids": "void",
}
"""Columns of the table of evaluations: metric -> heading."""


@click.command(name="show", short_help="Show a run, or one of its traces.")
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--trace", "trace_id", metavar="ID", help="Show this episode's trace instead of the run.")
@click.option("--all", "everything", is_flag=True, help="Every curve, the whole summary and the plugins as well.")
def command(run_dir: Path, trace_id: str | None, everything: bool) -> None:
    """Show a run as a page of text: does it learn, what does the policy do differently, what went wrong."""
    click.echo(show(run_dir, trace_id, everything), nl=False)


def show(run_dir: Path, trace_id: str | None = None, everything: bool = False) -> str:
    """The page of a run, or of one trace of it.

    Raises:
        ConfigError: the folder holds no run, or no trace of that id.
    """
    if not any((run_dir / name).exists() for name in ("events.jsonl", "config.json")):
        fix = "name a folder that `composer-run train` has written, such as runs/<name>"
        raise ConfigError("no run in this folder", where=str(run_dir), expected="events.jsonl or config.json", fix=fix)
    return _show_trace(run_dir, trace_id) if trace_id else _show_run(run_dir, everything)


def _show_trace(run_dir: Path, trace_id: str) -> str:
    folder = run_dir / "traces"
    known = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.trace")}
    if trace_id not in known:
        some = list(known) if len(known) <= 8 else [*list(known)[:8], f"and {len(known) - 8} more"]
        near = did_you_mean(trace_id, known)
        fix = near if near.startswith("did") else f"known: {', '.join(some)}" if known else "the run has no traces yet"
        raise ConfigError(f"no trace {trace_id!r} in this run", where=str(folder), fix=fix)
    trace = decode(known[trace_id].read_bytes())
    of_group = History.read(run_dir).group_scores.get(trace.key.episode_id, ())
    return readable(evolve(trace, scores=(*trace.scores, *of_group)))


def _show_run(run_dir: Path, everything: bool) -> str:
    history = History.read(run_dir)
    summary = _json(run_dir / "summary.json") or history.summary
    case, rows = changed(history.latest())
    parts: list[RenderableType] = [_head(run_dir, history, summary)]
    parts += [_evaluations(history)] if history.evaluations else []
    parts += [_changed(case, rows)] if rows else [_tools(history)] if history.evaluations else []
    parts += [_stages(history)] if history.stages else []
    parts += [_curves(stage, everything) for stage in history.stages.values() if stage.metrics]
    parts += [_outcomes(history)] if history.episodes else []
    parts += _ledger(_json(run_dir / "status.json"))
    parts += [_faults(history)] if history.faults else []
    parts += [_examples(run_dir, history)] if history.episodes else []
    if everything:
        parts += [_pairs("Summary", _flat(summary))] if summary else []
        parts += [_pairs("Plugins", _plugins(_json(run_dir / "plugins.json")))]
    return _to_text(parts)


def _to_text(parts: Iterable[RenderableType]) -> str:
    out = StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, color_system=None)
    console.print(Group(*(item for part in parts for item in (part, Text()))), crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


def _head(run_dir: Path, history: History, summary: Mapping[str, Any]) -> Text:
    starts = f", {history.starts} starts" if history.starts > 1 else ""
    counts = f"{len(history.episodes):,} episodes, {history.versions} weight versions published"
    lines = [
        f"{history.name or run_dir.name}: {history.status}, {clock(history.spent_s)}{starts}",
        f"{run_dir}: {counts}" if history.starts else f"{run_dir}: not started",
    ]
    gain = summary.get("gain")
    if isinstance(gain, dict):
        rates = f"solved {_number(summary.get('solve_rate_before'))} -> {_number(summary.get('solve_rate_after'))}"
        span = f"{gain['mean']:+.3f} (95 %: {gain['ci95_low']:+.3f} to {gain['ci95_high']:+.3f})"
        lines.append(f"{rates}, gain {span}: {_verdict(gain)}")
    return Text(printable("\n".join(lines)))


def _verdict(gain: Mapping[str, float]) -> str:
    if gain["ci95_low"] > 0:
        return "it learned"
    return "it got worse" if gain["ci95_high"] < 0 else "no difference is shown"


def _changed(case: str, rows: Sequence[tuple[str, float, float]]) -> Table:
    told = [(name, f"{before:.4g}", f"{after:.4g}", f"{after - before:+.3g}") for name, before, after in rows]
    columns = (f"what the policy does differently in {case}", "before", "after", "change")
    return _table("Behavior", columns, told)


def _examples(run_dir: Path, history: History) -> Text:
    """One episode of each outcome, the latest, to look at."""
    latest = {row.outcome: row.id for row in history.episodes.values() if row.uri}
    lines = [f"  composer-run show {run_dir} --trace {id}   ({outcome})" for outcome, id in sorted(latest.items())]
    text = "\n".join(["Look at one:", *lines] if lines else ["no trace was written"])
    return Text(printable(text), no_wrap=True, overflow="ignore")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _stages(history: History) -> Table:
    rows = []
    for stage in history.stages.values():
        done = f"{max(stage.metrics, default=0)}{f'/{stage.steps}' if stage.steps else ''}"
        state = "ended" if stage.ended else history.status
        rows.append((stage.name, stage.kind, state, done, clock(stage.spent_s)))
    return _table("Stages", ("stage", "kind", "state", "steps", "time"), rows, left=3)


def _curves(stage: StageLog, everything: bool) -> Table:
    names = stage.names()
    ordered = [name for name in FIRST if name in names]
    ordered += [name for name in names if name not in FIRST] if everything or not ordered else []
    rows = []
    for name in ordered:
        values = [value for _, value in stage.series(name)]
        if values:
            ends = (values[0], values[-1], min(values), max(values))
            rows.append((name, sparkline(values), *(f"{value:.4g}" for value in ends)))
    return _table(f"Curves of {stage.name}", ("metric", "", "first", "last", "min", "max"), rows, left=2)


def _evaluations(history: History) -> Table:
    return _table(
        "Evaluations",
        ("name", "step", *EVALUATED.values()),
        (
            (entry.name, str(entry.step), *(_number(entry.metrics.get(column)) for column in EVALUATED))
            for entry in history.latest()
        ),
    )


def _tools(history: History) -> Table:
    """What each evaluation's calls were, where none was made before and after (`_changed` has them then)."""
    told = {
        entry.name: [f"{name[5:]} {share:.0%}" for name, share in sorted(entry.metrics.items()) if name[:5] == "tool/"]
        for entry in history.latest()
    }
    return _pairs("Calls", ((name, ", ".join(tools)) for name, tools in told.items()))


def _outcomes(history: History) -> Table:
    rows = []
    for purpose, counts in history.outcomes().items():
        total = sum(counts.values())
        rows += [(purpose, outcome, f"{n:,}", f"{n / total:.1%}") for outcome, n in counts.most_common()]
    return _table("Episodes", ("purpose", "outcome", "count", "share"), rows, left=2)


def _ledger(status: Any) -> list[RenderableType]:
    """What the ledger of the last rl stage has counted, and its slots and groups as the run left them; or nothing."""
    ledger = status.get("ledger") if isinstance(status, dict) else None
    if not isinstance(ledger, dict):
        return []
    title = f"Ledger of {status.get('stage', '?')} after step {_number(status.get('step'))}"
    return [_pairs(title, [(name.replace("_", " "), _counted(value)) for name, value in ledger.items()])]


def _counted(value: Any) -> str:
    if not isinstance(value, dict):
        return _number(value)
    return ", ".join(f"{name}: {_number(count)}" for name, count in value.items()) or "none"


def _faults(history: History) -> Table:
    return _table(
        "Faults",
        ("where", "plugin", "error", "times"),
        ((*key, str(times)) for key, times in history.faults.most_common(12)),
        left=3,
    )


def _pairs(title: str, pairs: Iterable[tuple[str, str]]) -> Table:
    table = _table(title, ("", ""), pairs, left=2)
    table.show_header = False
    return table


def _flat(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested mappings as (dotted name, text)."""
    if not isinstance(values, dict):
        return [(prefix, _number(values))]
    return [pair for name, value in values.items() for pair in _flat(value, f"{prefix}.{name}" if prefix else name)]


def _plugins(found: Any) -> list[tuple[str, str]]:
    """plugins.json as (name, rest), whether it lists records or maps names to them."""
    rows = found.get("plugins", found) if isinstance(found, dict) else found or []
    if isinstance(rows, dict):
        return _flat(rows)
    named = [row if isinstance(row, dict) else {"name": row} for row in rows]
    return [
        (str(row.get("name", "?")), " ".join(str(row[key]) for key in ("dist", "version") if key in row))
        for row in named
    ]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError("not a JSON file", where=str(path), found=str(error)) from error


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """A row of blocks; each stands for the mean of an equal share of the values."""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(BLOCKS[round((mean - low) / span * 7) if span else 3] for mean in means)
