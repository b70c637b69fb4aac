"""`composer-run plugins`: what is installed, in which state, with which components."""

from __future__ import annotations

import json

import attrs
import click

from composer_core.cli import Options
from composer_core.plugins import report


@click.command(name="plugins")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(options: Options, as_json: bool) -> None:
    """List installed plugins and their components."""
    rows = report(options.plugins, options.blocked)
    if as_json:
        click.echo(json.dumps([attrs.asdict(row) for row in rows], indent=1))
        return
    for row in rows:
        click.echo(f"{row.name:<16}{row.state:<14}{row.dist} {row.version}  ({row.why}, {row.import_ms:.1f} ms)")
        for component in row.components:
            click.echo(f"    {component}")
