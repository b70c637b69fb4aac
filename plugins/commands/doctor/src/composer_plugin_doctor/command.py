"""`composer-run doctor`: what this machine offers, whether what is installed fits together, and how to mend the rest.

The exit code is 0 whatever is missing, since nobody needs everything. With `--plugins A,B` before the command it is 1
if something that these need is not in order: one does not load, a requirement of its distribution is not met, its
metadata is stale, or a command that one of its tools runs is not here.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence

import attrs
import click
from packaging.utils import canonicalize_name

from composer_core.cli import COMMAND_GROUP, Options
from composer_core.listing import Row, report
from composer_core.plugins import GROUP, folded
from composer_core.records import ToolSpec
from composer_plugin_doctor import machine
from composer_plugin_doctor.distributions import Installed
from composer_plugin_doctor.machine import BROKEN, OK, Finding

ENDLESS = 1 << 16
"""Columns of a page that is never wrapped."""
INDENT = " " * 21
NAMED = ("--plugins",)


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(options: Options, as_json: bool) -> None:
    """Say what this machine offers, what is missing, and how to mend it.

    The exit code is 1 only if --plugins A,B is given and something that these need is not in order.
    """
    rows = report(options.plugins, options.blocked)
    asked = {folded(name) for name in options.plugins}
    named = [row for row in rows if row.name in asked]
    findings = [*_machine(named), *_plugins(rows, asked), *_distributions(named)]
    if as_json:
        click.echo(json.dumps([attrs.asdict(finding) for finding in findings], indent=1))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else ENDLESS
        for finding in findings:
            click.echo(_text(finding, width))
    if any(finding.needed_by and finding.state != OK for finding in findings):
        raise click.exceptions.Exit(1)


def _machine(named: Sequence[Row]) -> list[Finding]:
    """The machine itself, and every command that tools of the named plugins run."""
    needs: dict[str, list[str]] = {}
    for entry in (entry for row in named for entry in row.components):
        for need in entry.spec.needs if isinstance(entry.spec, ToolSpec) else ():
            needs.setdefault(need, []).append(entry.id)
    more = {need: machine.command(need, (need,), "", "install it") for need in needs if need not in machine.PROBES}
    found = machine.examine({**machine.PROBES, **more})
    return [attrs.evolve(finding, needed_by=tuple(needs.get(finding.name, ()))) for finding in found]


def _plugins(rows: Sequence[Row], asked: set[str]) -> Iterator[Finding]:
    """Plugins that cannot be loaded, each by itself; the others in one line."""
    good = [row.name for row in rows if row.state in ("loaded", "available")]
    yield Finding("plugins", OK, f"{len(good)} can be loaded: {', '.join(good)}")
    for row in rows:
        if row.state in ("failed", "incompatible"):
            why = "; ".join(" ".join(line.split()) for line in row.why.splitlines())
            needed = NAMED if row.name in asked else ()
            yield Finding("plugins", BROKEN, why, f"the components of {row.name}", needed_by=needed)


def _distributions(named: Sequence[Row]) -> Iterator[Finding]:
    """Requirements and metadata of what core and plugins are made of."""
    try:
        installed = Installed.read(GROUP, COMMAND_GROUP)
        unmet = installed.conflicts(installed.ours())
        needed = {defect.dist for defect in installed.conflicts(row.dist for row in named)}
        stale = installed.stale()
    except Exception as error:
        yield Finding("packages", BROKEN, f"could not be found out: {type(error).__name__}: {error}")
        return
    if not unmet and not stale:
        yield Finding("packages", OK, f"all that {len(installed.ours())} distributions require is there")
    needed |= {canonicalize_name(row.dist) for row in named}
    for defect in (*unmet, *stale):
        by = NAMED if defect.dist in needed else ()
        yield Finding("packages", BROKEN, defect.text, fix=defect.fix, needed_by=by)


def _text(finding: Finding, width: int) -> str:
    head = click.wrap_text(f"{finding.name:<12} {finding.state:<7} {finding.found}", width, "", INDENT)
    color = {OK: "green", BROKEN: "red"}.get(finding.state)
    lines = [f"{head[:13]}{click.style(head[13:20], fg=color)}{head[20:]}"]
    more = {"lost": finding.lost, "fix": finding.fix, "needed by": ", ".join(finding.needed_by)}
    for label, text in more.items() if finding.state != OK else ():
        if text:
            lines.append(click.wrap_text(f"{label}: {text}", width, INDENT, INDENT + "  "))
    return "\n".join(lines)
