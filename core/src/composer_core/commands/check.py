"""`composer-run check`: what a run file would do, and everything that is wrong with it, before anything is built.

The page is `plan.plan` laid out at 100 columns, without color, in an order that depends on the run file alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from composer_core import checking
from composer_core.assembly import Assembly
from composer_core.cli import Options
from composer_core.commands.common import assemble, load_run, run_async, run_file
from composer_core.plan import plan
from composer_core.printable import printable, size
from composer_core.problems import refuse

WIDTH = 100


@click.command(name="check")
@run_file
@click.option("--probe", is_flag=True, help="Also count the tasks and try the sandbox here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(options: Options, run_toml: Path, overrides: tuple[str, ...], probe: bool, as_json: bool) -> None:
    """Say what RUN_TOML would do, and what is wrong with it."""
    config, plugins = load_run(run_toml, overrides, options)
    where = " --set ".join([str(run_toml), *overrides])
    with tempfile.TemporaryDirectory(prefix="composer-check-") as scratch:
        assembly = assemble(config, plugins, Path(scratch))
        refuse(checking.problems_of(assembly, plugins), where)
        says = run_async(lambda: _probe(assembly, where)) if probe else ""
        found = plan(assembly, plugins) | {"probed": probe, "sandbox": says}
    click.echo(json.dumps(found, indent=1) + "\n" if as_json else page(found), nl=False)


async def _probe(assembly: Assembly, where: str) -> str:
    try:
        refuse(await checking.probe(assembly), where)
        return checking.described(assembly)
    finally:
        await assembly.close()


def page(found: dict[str, Any]) -> str:
    """The plan as text."""
    console = Console(file=StringIO(), width=WIDTH, color_system=None, highlight=False)
    how = ", deterministic" * found["deterministic"]
    console.print(Text(printable(f"{found['name']}: ok, seed {found['seed']}{how}")))
    for title, rows in _sections(found):
        console.print(Text(f"\n{title}"))
        console.print(Padding(_table(rows), (0, 0, 0, 2)))
    file: Any = console.file
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _table(rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
    return table


def _sections(found: dict[str, Any]) -> list[tuple[str, list[Sequence[str]]]]:
    sections: list[tuple[str, list[Sequence[str]]]] = [
        ("Components", [*map(_component, found["components"]), *_unused(found)]),
        ("Capabilities", [_capability(row) for row in found["capabilities"]]),
    ]
    if found["probed"]:
        sandbox = "\n".join(filter(None, ["offers all of it", found["sandbox"]]))
        sections.append(("Probed on this machine", [("tasks", "as many as are asked for"), ("sandbox", sandbox)]))
    return [
        *sections,
        ("Stages", [_stage(row) for row in found["stages"]] or [("none", "")]),
        ("Evaluations", _evaluations(found)),
        ("Episodes", _episodes(found)),
        ("Rewards", _rewards(found["rewards"])),
        ("Memory, estimated at its peak", _memory(found["memory"])),
        (f"Writes {found['folder']}, or --run-dir", _files(found["files"], found["memory"]["unknown"])),
    ]


def _component(row: dict[str, Any]) -> Sequence[str]:
    return row["key"], row["id"], "\n".join(filter(None, [f"{row['dist']} {row['version']}", _given(row["settings"])]))


def _unused(found: dict[str, Any]) -> list[Sequence[str]]:
    names = found["unused_plugins"]
    return [("loaded", ", ".join(names), "no key chooses a component of it; a setting may need it")] if names else []


def _given(settings: dict[str, Any]) -> str:
    """Settings that are not defaults, as the run file would say them."""
    return ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())


def _capability(row: dict[str, Any]) -> Sequence[str]:
    offers = ", ".join(name.partition(".")[2] for name in row["offers"])
    needs = ", ".join(f"{name.partition('.')[2]} ({why})" for name, why in row["needs"])
    return row["key"], f"offers {offers}\n" + (f"needed here: {needs}" if needs else "nothing special is needed here")


def _stage(row: dict[str, Any]) -> Sequence[str]:
    tokens = f"{row['tokens']:,} tokens"
    cost = f"{row['episodes']:,} episodes, at most {tokens} sampled" if row["episodes"] else f"{tokens} trained"
    lines = [f"{row['steps']:,} steps of {row['each']}: {cost}", _given(row["settings"])]
    return row["name"], row["kind"], "\n".join(filter(None, lines))


def _evaluations(found: dict[str, Any]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for row in found["evaluations"]:
        how = [row["sampler"], f"T={row['temperature']:g}", "blank results" * (row["observations"] == "blank")]
        many = f"{row['tasks']} tasks x {row['attempts']}"
        rows.append((row["name"], row["split"], many, ", ".join(filter(None, how)), ", ".join(row["when"])))
    for moment, cost in found["moments"].items():
        if cost["episodes"] and cost["times"]:
            times = f", {cost['times']} times" if cost["times"] > 1 else ""
            rows.append((f"all {moment}", "", f"{cost['episodes']:,} episodes{times}", "attempts in common once"))
    return rows or [("none",)]


def _episodes(found: dict[str, Any]) -> list[Sequence[str]]:
    offers = {name for row in found["capabilities"] if row["key"] == "sandbox" for name in row["offers"]}
    caps = []
    for name, value in found["sandbox_limits"].items():
        kind = name.removesuffix("_bytes").replace("file", "file_size")
        held = "" if f"sandbox.limits.{kind}" in offers else " (not enforced)"
        caps.append(f"{kind} {size(value) if name.endswith('_bytes') else value}{held}")
    own = [f"{name} {found['limits'][name]:g}" for name in found["limits_set"]]
    others = [f"{name} {value:g}" for name, value in found["limits"].items() if name not in found["limits_set"]]
    at_once = found["in_flight"]
    return [
        ("in all", f"{found['episodes']:,}, void ones and their refills apart"),
        ("in flight", f"{at_once} at once, each with one sandbox" if at_once else "as many as the executor decides"),
        ("limits", ", ".join(own) or "none of the run's own"),
        ("", f"unless a task says otherwise: {', '.join(others)}" if others else ""),
        ("of a sandbox", ", ".join(caps)),
    ]


def _rewards(rewards: dict[str, Any]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for row in rewards["each"]:
        low, high = row["range"]
        says = "decides the verdict" if row["outcome"] else ""
        rows.append((row["id"], f"{row['weight']:g} x [{low:g}, {high:g}]", says))
    gap, swing = rewards["gap"], rewards["swing"]
    if gap and swing:
        rows.append(("proof", f"all others move at most {swing:g} < {gap:g}", "so they cannot outweigh the outcome"))
    elif gap:
        rows.append(("proof", "there are no others", "so nothing can outweigh the outcome"))
    return rows or [("none",)]


def _memory(memory: dict[str, Any]) -> list[Sequence[str]]:
    own, *others = memory["processes"]
    rows: list[Sequence[str]] = [
        (own["name"], _size(own["peak_bytes"]), "at least, " * bool(memory["unknown"]) + "the sum of")
    ]
    rows += [("", _size(part), name) for name, part in sorted(memory["parts"].items(), key=lambda item: -item[1])]
    rows += [("", "unknown", f"{name} (gives none)") for name in memory["unknown"]]
    for one in others:
        how = "capped" if one["capped"] else "estimated"
        rows.append((one["name"], _size(one["peak_bytes"]), f"{how}, each of at most {one['most']}"))
    return rows


def _files(files: dict[str, int], unknown: Sequence[str]) -> list[Sequence[str]]:
    """What a component that gives no estimate writes has none either."""
    known = {**files, "in all, at least" if unknown else "in all, about": sum(files.values())}
    return [(path, _size(each) if each else "unknown") for path, each in known.items() if each or unknown]


def _size(count: int) -> str:
    return size(count).rjust(9)
