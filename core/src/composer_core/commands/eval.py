"""`composer-run eval`: run the evaluations of a run file with the weights of a finished run, training nothing."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import attrs
import click

from composer_core import checking
from composer_core.assembly import Assembly
from composer_core.cli import Options
from composer_core.commands.common import assemble, link_tokenizer, load_run, run_async, run_file
from composer_core.commits import open_run, same_tokenizer
from composer_core.config import to_data
from composer_core.errors import ConfigError
from composer_core.evaluate import evaluate
from composer_core.problems import refuse
from composer_core.rundir import Commit, RunDir
from composer_core.types import EpisodeRequest, EpisodeResult


@click.command(name="eval")
@run_file
@click.option("--run", "run_dir", type=click.Path(path_type=Path), required=True, help="The run whose policy is meant.")
@click.option("--only", multiple=True, metavar="NAME", help="Only these evaluations of the run file.")
@click.pass_obj
def command(options: Options, run_toml: Path, overrides: tuple[str, ...], run_dir: Path, only: tuple[str, ...]) -> None:
    """Evaluate the policy of a run with the evaluations of RUN_TOML; prints JSON."""
    config, plugins = load_run(run_toml, overrides, options)
    unknown = set(only) - {set_.name for set_ in config.evaluations}
    if unknown:
        raise ConfigError("no such evaluation", where="--only", found=", ".join(sorted(unknown)))
    folder, _, commit = open_run(run_dir)
    if commit is None:
        raise ConfigError("the run has no commit yet", where=str(run_dir))
    with tempfile.TemporaryDirectory(prefix="composer-eval-") as scratch:
        RunDir(Path(scratch)).create(to_data(config), plugins.manifest())  # what workers build from
        link_tokenizer(folder.path, Path(scratch))
        assembly = assemble(config, plugins, Path(scratch))
        refuse(checking.problems_of(assembly, plugins), str(run_toml))
        found = run_async(lambda: _evaluate(assembly, folder.path, commit, only))
    click.echo(json.dumps(found, indent=1))


async def _evaluate(assembly: Assembly, run: Path, commit: Commit, only: tuple[str, ...]) -> dict[str, Any]:
    try:
        executor = assembly.get("executors")
        await executor.start()
        same_tokenizer(assembly, commit, run)
        await executor.publish(attrs.evolve(commit.weights, uri=str(run.resolve() / commit.weights.uri)))
        sets = [set_ for set_ in assembly.config.evaluations if not only or set_.name in only]
        tasks_of, config = assembly.get("tasks").tasks, assembly.config

        async def attempt(request: EpisodeRequest, purpose: str) -> EpisodeResult:
            result: EpisodeResult = await executor.submit(request)
            return result

        found = await evaluate(sets, "eval", tasks_of, attempt, config.seed, config.limits)
        return {one.name: one.metrics for one in found}
    finally:
        await assembly.close()
