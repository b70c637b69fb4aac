"""`composer-run check`: what a run file would do, and everything that is wrong with it, before anything is built."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from composer_core import checking
from composer_core.assembly import SINGLE, Assembly
from composer_core.cli import Options
from composer_core.commands.common import assemble, load_run, run_async, run_file
from composer_core.plugins import Plugins


@click.command(name="check")
@run_file
@click.option("--probe", is_flag=True, help="Build the sandbox provider and ask what it can do on this machine.")
@click.pass_obj
def command(options: Options, run_toml: Path, overrides: tuple[str, ...], probe: bool) -> None:
    """Say what RUN_TOML would do, and what is wrong with it."""
    config, plugins = load_run(run_toml, overrides, options)
    with tempfile.TemporaryDirectory(prefix="composer-check-") as scratch:
        assembly = assemble(config, plugins, Path(scratch))
        checking.refuse(checking.problems_of(assembly, plugins), str(run_toml))
        if probe:
            run_async(lambda: _probe(assembly, str(run_toml)))
    click.echo(describe(assembly, plugins))


async def _probe(assembly: Assembly, where: str) -> None:
    try:
        checking.refuse(await checking.probe(assembly), where)
    finally:
        await assembly.close()


def describe(assembly: Assembly, plugins: Plugins) -> str:
    """The run in a page: plugins, components, stages, evaluations."""
    config = assembly.config
    lines = [f"{config.name}: ok, seed {config.seed}" + (", deterministic" if config.deterministic else "")]
    lines.append("plugins")
    lines += [f"  {p.candidate.name:<16}{p.candidate.dist} {p.candidate.version}" for p in plugins.loaded]
    lines.append("components")
    for kind, key in SINGLE.items():
        entry = assembly.entry(kind)
        if entry:
            lines.append(f"  {key:<16}{entry.id}")
    lines.append(f"  {'tools':<16}{', '.join(config.tools.use) or 'none'}")
    rewards = [f"{reward.use} x {reward.weight:g}" for reward in config.rewards]
    lines.append(f"  {'rewards':<16}{', '.join(rewards) or 'none'}")
    lines.append(f"  {'trackers':<16}{', '.join(tracker.use for tracker in config.trackers)}")
    lines.append("stages")
    lines += [f"  {c.stage.name:<16}{c.stage.kind}, {c.stage.steps} steps" for c in config.stages]
    lines.append("evaluations")
    lines += [
        f"  {e.name:<16}{e.split}, {e.tasks} tasks x {e.attempts}, T={e.temperature:g}, {' and '.join(e.when)}"
        for e in config.evaluations
    ]
    needs = sorted({f"{capability} ({why})" for _, capability, why in checking.needs_of(config)})
    lines.append(f"needs            {', '.join(needs) or 'nothing special'}")
    lines.append(f"writes           runs/{config.name}, or --run-dir")
    return "\n".join(lines)
