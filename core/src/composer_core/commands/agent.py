"""`composer-run agent`: the policy of a run works on a folder of yours, in the harness and sandbox it was trained in.

The very parts of a training episode (`episode.run_episode`, the run's tools, renderer, context, sandbox and limits) run
one episode on a copy of the folder; the folder itself is read once and written only after a person has accepted the
diff. Steps are shown as they happen on standard error; standard output holds the diff alone.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import attrs
import click

from composer_core.assembly import Assembly
from composer_core.cli import Options
from composer_core.commands.common import (
    assemble,
    link_tokenizer,
    load_plugins,
    run_async,
    verify_manifest,
)
from composer_core.commits import open_run
from composer_core.config import RlStage, RunConfig, override, restructure
from composer_core.diffs import unified
from composer_core.episode import run_episode
from composer_core.errors import ComposerError, ConfigError
from composer_core.evaluate import request_for
from composer_core.folders import acceptable, apply_to_folder, read_folder
from composer_core.printable import printable
from composer_core.problems import refuse
from composer_core.rundir import Commit, RunDir
from composer_core.traces import turn_text
from composer_core.trees import Tree
from composer_core.types import GradingRef, Outcome, Sampling, SlotKey, Task, Trace, Turn


@click.command(name="agent")
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--prompt", help="What to do; asked for when left out.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another attempt at a temperature above 0.")
@click.option("--yes", is_flag=True, help="Accept the diff without asking.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, such as limits.turns=20.")
@click.pass_obj
def command(
    options: Options,
    run_dir: Path,
    folder: Path,
    prompt: str | None,
    temperature: float,
    seed: int,
    yes: bool,
    overrides: tuple[str, ...],
) -> None:
    """Let the policy of RUN_DIR work on a copy of FOLDER, then show what it changed and ask."""
    run, config, commit = _policy_of(run_dir, overrides)
    caps = config.sandbox_limits
    before = read_folder(folder, caps.file_bytes, caps.disk_bytes)
    asked = prompt or click.prompt("What is to be done", err=True)
    plugins = load_plugins(config, options)
    verify_manifest(run.read_json("plugins.json") or [], plugins)
    with tempfile.TemporaryDirectory(prefix="composer-agent-") as scratch:
        link_tokenizer(run.path, Path(scratch))
        assembly = assemble(config, plugins, Path(scratch))
        refuse(plugins.check(assembly.choices.view()), str(run_dir))
        trace = run_async(lambda: work(assembly, run, commit, before, asked, Sampling(temperature), seed))
    _finish(trace, folder, before, yes)


def _policy_of(run_dir: Path, overrides: tuple[str, ...]) -> tuple[RunDir, RunConfig, Commit]:
    """The run, its configuration without what only training needs, and its last commit."""
    run, data, commit = open_run(run_dir)
    if commit is None:
        raise ConfigError("the run has no commit yet", where=str(run_dir), fix="let it reach its first checkpoint")
    for text in overrides:
        override(data, text)
    config = restructure(data, run_dir / "config.json")
    return run, attrs.evolve(config, samplers={}, rewards=(), evaluations=(), trackers=()), commit


async def work(
    assembly: Assembly, run: RunDir, commit: Commit, before: Tree, prompt: str, sampling: Sampling, seed: int = 0
) -> Trace:
    """One ungraded episode on `before`.

    Raises:
        ConfigError: the harness is not the one the policy was trained in.
        ComposerError: host, sandbox or sampler broke.
    """
    try:
        assembly.harness().refuse_other(_recorded(run), str(run.path / "harness.json"))
        parts = attrs.evolve(assembly.get("parts"), watch=_show)
        await parts.samplers["policy"].load(commit.weights, run.path.resolve() / commit.weights.uri)
        view = attrs.evolve(
            _example(assembly).view, id="agent", prompt=prompt, workspace=parts.sandboxes.offer(before), labels={}
        )
        task = Task(view, GradingRef("", ""))
        request = request_for(task, SlotKey("agent", seed, "agent"), assembly.config.seed, assembly.config.limits)
        trace = await run_episode(attrs.evolve(request, sampling=sampling, graded=False), parts)
    finally:
        await assembly.close()
    if trace.verdict.outcome is Outcome.VOID:
        raise ComposerError("the episode could not be run", found="; ".join(fault.error for fault in trace.faults))
    return trace


def _recorded(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] | None = run.read_json("harness.json")
    if found is None:
        raise ConfigError(
            "the run does not say in which harness its policy was trained",
            where=str(run.path / "harness.json"),
            fix="the file is written by `composer-run train`; restore it",
        )
    return found


def _example(assembly: Assembly) -> Task:
    """A task the policy was trained on: its limits and needs are those of the agent."""
    tasks = assembly.get("tasks")
    splits = [choice.stage.split for choice in assembly.config.stages if isinstance(choice.stage, RlStage)]
    found: Any = next(iter(tasks.tasks((splits or list(tasks.splits()))[0])), None)
    if found is None:
        raise ConfigError("the run's task set is empty", where="tasks.use", found=assembly.config.tasks.use)
    task: Task = found
    return task


def _show(turn: Turn) -> None:
    click.echo(printable(turn_text(turn)) + "\n", err=True)


def _finish(trace: Trace, folder: Path, before: Tree, yes: bool) -> None:
    """Say how it ended, print the diff, apply it if a person who has seen it agrees."""
    patch = acceptable(trace.patch)
    click.echo(f"stopped: {trace.stop} after {len(trace.turns)} turns; harness {trace.harness}", err=True)
    for path in patch.skipped:
        click.echo(f"left out: {path!a} (no regular file, too large, or of a name that is never written)", err=True)
    if not patch:
        click.echo("nothing was changed", err=True)
        return
    text = unified(before.files, patch)
    if os.isatty(1):
        for line in text.split("\n")[:-1]:
            click.secho(printable(line), fg=_color(line))
    else:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)
    seen = os.isatty(0) and os.isatty(1)
    if yes or (seen and click.confirm("Apply this to the folder?", err=True)):
        apply_to_folder(folder, before, patch)
        click.echo(f"applied to {folder}", err=True)
    else:
        click.echo("not applied; --yes applies without asking", err=True)


def _color(line: str) -> str | None:
    if line.startswith(("+++", "---")):
        return None
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
