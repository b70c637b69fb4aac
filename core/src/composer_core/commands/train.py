"""`composer-run train`: run the stages of a run file, or carry on an interrupted run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from composer_core import checking
from composer_core.cli import Options
from composer_core.commands.common import assemble, load_plugins, load_run, run_async, verify_manifest
from composer_core.config import RunConfig, restructure, to_data
from composer_core.errors import ConfigError
from composer_core.events import Event, RunEnded, RunStarted
from composer_core.hookspecs import Problem
from composer_core.pipeline import Pipeline
from composer_core.plugins import Plugins
from composer_core.problems import refuse
from composer_core.rundir import Commit, RunDir
from composer_core.summary import Meter
from composer_core.tracking import Trackers, read_events


@click.command(name="train")
@click.argument("run_toml", type=click.Path(path_type=Path), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the run file.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Folder to write; default runs/<name>.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN_DIR", help="Carry on an interrupted run.")
@click.option("--or-resume", is_flag=True, help="If the folder holds this run already, carry it on.")
@click.option("--rollouts-only", is_flag=True, help="Of each rl stage, roll out and grade one step; train none.")
@click.pass_obj
def command(
    options: Options,
    run_toml: Path | None,
    overrides: tuple[str, ...],
    run_dir: Path | None,
    resume: Path | None,
    or_resume: bool,
    rollouts_only: bool,
) -> None:
    """Run the stages of RUN_TOML, or carry on a run with --resume."""
    if resume:
        if run_toml or overrides or run_dir or or_resume:
            raise ConfigError(
                "a resumed run keeps its own configuration",
                where="--resume",
                fix="leave out RUN_TOML, --set, --run-dir and --or-resume",
            )
        _resume(RunDir(resume), options, rollouts_only)
    elif run_toml:
        config, plugins = load_run(run_toml, overrides, options)
        folder = RunDir(run_dir or Path("runs") / config.name)
        if or_resume and folder.holds_run():
            there = to_data(restructure(folder.config(), folder.path / "config.json"))
            refuse(changes(there, to_data(config)), f"{folder.path}, a run of another configuration", ConfigError)
            _resume(folder, options, rollouts_only)
        else:
            folder.refuse_used()
            with folder.lock():
                _run(config, plugins, folder, None, rollouts_only=rollouts_only)
    else:
        raise ConfigError("say what to run", fix="composer-run train RUN.toml, or --resume RUN_DIR")


def changes(there: Any, here: Any, at: str = "") -> Iterator[Problem]:
    """A problem for each key by which two results of `to_data` differ; None stands for what one of them lacks."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in {**there, **here}:
            yield from changes(there.get(key), here.get(key), f"{at}.{key}" if at else key)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for number, (one, other) in enumerate(zip(there, here, strict=True)):
            yield from changes(one, other, f"{at}[{number}]")
    elif there != here:
        yield Problem(at, f"{there!r} in the folder, {here!r} now", "choose another --run-dir, or --resume this one")


def _resume(folder: RunDir, options: Options, rollouts_only: bool) -> None:
    data = folder.config()
    with folder.lock():
        commit, summary = folder.last_commit(), folder.read_json("summary.json")
        if summary and summary.get("rollouts_only"):
            raise ConfigError(
                "the run was ended with --rollouts-only: its rl stages were not trained",
                where=str(folder.path),
                fix="choose another --run-dir",
            )
        if summary is not None:  # its figures were measured by the process that ended it
            click.echo(f"composer-run: {folder.path} is finished; see composer-run show {folder.path}", err=True)
            return
        config = restructure(data, folder.path / "config.json")
        plugins = load_plugins(config, options)
        verify_manifest(folder.read_json("plugins.json") or [], plugins)
        _run(config, plugins, folder, commit, resumed=True, rollouts_only=rollouts_only)


def _run(config: RunConfig, plugins: Plugins, folder: RunDir, commit: Commit | None, **how: bool) -> None:
    run_async(
        lambda: train(config, plugins, folder, commit, **how),
        go_on=f"resume it with: composer-run train --resume {folder.path}",
    )


async def train(
    config: RunConfig,
    plugins: Plugins,
    folder: RunDir,
    commit: Commit | None = None,
    *,
    resumed: bool = False,
    rollouts_only: bool = False,
) -> dict[str, Any]:
    """Check, open the trackers, run the pipeline, and close everything whatever happens."""
    trackers: Trackers | None = None

    def emit(event: Event) -> None:
        if trackers:
            trackers.emit(attrs.evolve(event, time_s=time.time()))

    assembly = assemble(config, plugins, folder.path, emit)
    refuse(checking.problems_of(assembly, plugins), config.name)
    status = "failed"
    try:
        refuse(await checking.probe(assembly), config.name)
        if not resumed:  # from here on there is something to resume
            folder.create(to_data(config), plugins.manifest())
        meter = Meter.resumed(read_events(folder.path))  # before the trackers go on writing
        trackers = Trackers(assembly.trackers())
        emit(_started(config, plugins, folder, commit))
        summary = await Pipeline(assembly, folder, emit, trackers.flush, commit, rollouts_only, meter).run()
        status = "finished"
        return summary
    except asyncio.CancelledError:
        status = "interrupted"
        raise
    finally:
        if status != "finished":
            emit(RunEnded(status=status))
        try:
            await assembly.close()
        finally:
            for fault in trackers.close() if trackers else ():
                click.echo(f"composer-run: {fault}", err=True)


def _started(config: RunConfig, plugins: Plugins, folder: RunDir, commit: Commit | None) -> RunStarted:
    return RunStarted(
        name=config.name,
        run_dir=str(folder.path),
        resumed_from=f"commit {commit.number}" if commit else None,
        plugins=tuple(f"{item.candidate.name} {item.candidate.version}" for item in plugins.loaded),
    )
