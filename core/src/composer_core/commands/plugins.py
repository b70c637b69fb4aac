"""`composer-run plugins`: what is installed, in which state, and why; with names or a kind, each component too.

A line for each plugin, in columns that are two spaces apart; where the output is no terminal nothing is wrapped, so
other programs can read it. Reasons are sentences and stand below.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from composer_core.cli import Options
from composer_core.errors import PluginError, did_you_mean
from composer_core.listing import Row, report
from composer_core.plugins import folded
from composer_core.records import SPECS

COLORS = {"loaded": "green", "available": "", "blocked": "dim", "failed": "red", "incompatible": "red"}
LEGEND = {
    "loaded": "built in, or named by --plugins",
    "available": 'it works; plugins = ["NAME"] in a run file, or --plugins NAME before a command, loads it',
    "blocked": "by -p no:NAME",
}
IMPORT = "import: of the hook module, cold, in this process; what plugins share counts for the first of them"
ENDLESS = 1 << 16
"""Columns of a page that is never wrapped."""


@click.command(name="plugins")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--kind", type=click.Choice(sorted(SPECS)), metavar="KIND", help="Only components of this kind.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(options: Options, names: tuple[str, ...], kind: str | None, as_json: bool) -> None:
    """List installed plugins, their state and their components; NAMEs or --kind show each component in a line."""
    rows = _chosen(report(options.plugins, options.blocked), names, kind)
    if as_json:
        click.echo(json.dumps([_data(row) for row in rows], indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else ENDLESS, highlight=False)
    for part in (_table(rows), *([_components(rows)] if names or kind else []), *_reasons(rows)):
        console.print(part)


def _chosen(rows: Sequence[Row], names: Sequence[str], kind: str | None) -> list[Row]:
    known = {row.name for row in rows}
    for name in names:
        if folded(name) not in known:
            raise PluginError(f"plugin {name!r} is not installed", where="plugins NAME", fix=did_you_mean(name, known))
    wanted = {folded(name) for name in names} or known
    rows = [row for row in rows if row.name in wanted]
    if kind is None:
        return rows
    of_kind = (tuple(entry for entry in row.components if entry.spec.kind == kind) for row in rows)
    return [attrs.evolve(row, components=own) for row, own in zip(rows, of_kind, strict=True) if own]


def _data(row: Row) -> dict[str, Any]:
    own = [{"kind": entry.spec.kind, "id": entry.id, "summary": entry.spec.summary} for entry in row.components]
    return {**attrs.asdict(row, recurse=False), "components": own}


def _grid(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, no_wrap=heading != headings[-1], overflow="fold")
    return table


def _table(rows: Sequence[Row]) -> Table:
    table = _grid("plugin", "version", "state", "import", "components")
    for row in rows:
        spent = "-" if row.import_ms is None else f"{row.import_ms:.1f} ms"
        state = Text(row.state, COLORS[row.state])
        table.add_row(row.name, row.version, state, spent, _kinds(row))
    return table


def _kinds(row: Row) -> str:
    """The names of its components, by kind."""
    found: dict[str, list[str]] = {}
    for entry in row.components:
        found.setdefault(entry.spec.kind, []).append(entry.spec.name)
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items()) or "-"


def _components(rows: Sequence[Row]) -> Table:
    table = _grid("\nkind", "\nid", "\nsummary")
    for row in rows:
        for entry in row.components:
            table.add_row(entry.spec.kind, entry.id, Text(entry.spec.summary))
    return table


def _reasons(rows: Sequence[Row]) -> list[RenderableType]:
    """Why plugins cannot be loaded, and what the words in the table mean."""
    found: list[RenderableType] = []
    for row in rows:
        if row.state in ("failed", "incompatible"):
            found.append(Text(f"\n{row.name} ({row.dist} {row.version}): {row.state}"))
            found.append(Padding(Text(row.why), (0, 0, 0, 2), expand=False))
    states = {row.state for row in rows}
    legend = [f"{state}: {text}" for state, text in LEGEND.items() if state in states]
    return [*found, Text("\n".join(["", *legend, IMPORT]))]
