"""`composer-run validate`: every task is what it claims to be, with no model involved.

Gold scores 1, doing nothing scores 0, each exploit scores 0; graded through the run's own sandbox and rewards.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from composer_core.assembly import Assembly
from composer_core.checking import splits_among
from composer_core.cli import Options
from composer_core.commands.common import assemble, load_run, run_async, run_file
from composer_core.episode import grade
from composer_core.errors import CheckError
from composer_core.evaluate import gather_all, request_for
from composer_core.problems import refuse
from composer_core.trees import Patch
from composer_core.types import Outcome, SlotKey, Stop, Task, Trace

AT_ONCE = 32


@click.command(name="validate")
@run_file
@click.option("--split", "splits", multiple=True, help="Only these splits; default all.")
@click.option("--limit", type=click.IntRange(1), help="At most this many tasks of each split.")
@click.option("--exploits/--no-exploits", default=True, help="Also grade the tasks' known attempts to cheat.")
@click.pass_obj
def command(
    options: Options,
    run_toml: Path,
    overrides: tuple[str, ...],
    splits: tuple[str, ...],
    limit: int | None,
    exploits: bool,
) -> None:
    """Grade the gold answer, nothing, and every exploit of each task of RUN_TOML."""
    config, plugins = load_run(run_toml, overrides, options)
    with tempfile.TemporaryDirectory(prefix="composer-validate-") as scratch:
        assembly = assemble(config, plugins, Path(scratch))
        refuse(plugins.check(assembly.choices.view()), str(run_toml))
        counts = run_async(lambda: validate(assembly, splits, limit, exploits))
    click.echo(f"{'split':<20}{'gold':>10}{'no-op':>10}{'exploits':>10}")
    for split, graded in counts.items():
        click.echo(f"{split:<20}{graded['gold']:>10,}{graded['no-op']:>10,}{graded['exploit']:>10,}")
    click.echo(f"{sum(graded.total() for graded in counts.values())} gradings, all as they must be")


async def validate(
    assembly: Assembly, splits: tuple[str, ...], limit: int | None, exploits: bool
) -> dict[str, Counter[str]]:
    """Split -> how many gradings of each sort (gold, no-op, exploit) were made.

    Raises:
        CheckError: some grading is not what it must be; names each.
    """
    tasks = assembly.get("tasks")
    wrong: list[str] = []
    counts: dict[str, Counter[str]] = {}
    try:
        for split in splits_among(tasks, splits, "--split"):
            graded = counts.setdefault(split, Counter())
            chosen = list(tasks.tasks(split))[:limit]
            starts = range(0, len(chosen), AT_ONCE)
            for start in track(starts, description=split, transient=True, console=Console(stderr=True)):
                cases = [
                    (task, name, patch, want)
                    for task in chosen[start : start + AT_ONCE]
                    for name, patch, want in _cases(assembly, task, exploits)
                ]
                found = await gather_all([_grade(assembly, task, patch) for task, _, patch, _ in cases])
                graded.update(name.partition(" ")[0] for _, name, _, _ in cases)
                wrong += [
                    f"{task.id}: {name} is {trace.verdict.outcome}, expected {want} {_why(trace)}"
                    for (task, name, _, want), trace in zip(cases, found, strict=True)
                    if trace.verdict.outcome is not want
                ]
    finally:
        await assembly.close()
    if wrong:
        total = sum(graded.total() for graded in counts.values())
        raise CheckError(f"{len(wrong)} of {total} gradings are wrong\n  - " + "\n  - ".join(wrong[:50]))
    return counts


def _cases(assembly: Assembly, task: Task, exploits: bool) -> list[tuple[str, Patch, Outcome]]:
    tasks = assembly.get("tasks")
    cases = [("gold", tasks.gold(task.id), Outcome.SOLVED), ("no-op", Patch(), Outcome.FAILED)]
    if exploits:
        cases += [(f"exploit {name}", patch, Outcome.FAILED) for name, patch in tasks.exploits(task.id).items()]
    return cases


async def _grade(assembly: Assembly, task: Task, patch: Patch) -> Trace:
    key = SlotKey(task.id, 0, "validate")
    trace = Trace(key, "validate", (), (), (), Stop.FINISHED, patch=patch)
    request = request_for(task, key, 0, assembly.config.limits)
    return await grade(trace, request, assembly.get("parts"))


def _why(trace: Trace) -> str:
    return "; ".join(fault.error for fault in trace.faults)
