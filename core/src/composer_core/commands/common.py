"""What the commands share: options, loading plugins and the run file, running the event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from composer_core.assembly import Assembly
from composer_core.cli import Options
from composer_core.config import RunConfig, load, structure
from composer_core.errors import PluginError, RunInterrupted
from composer_core.hookspecs import ProcessView
from composer_core.plugins import Plugins, select

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def run_file(function: F) -> F:
    """RUN.toml and --set of every command that reads a run file."""
    function = click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, such as stages.rl.steps=3."
    )(function)
    return click.argument("run_toml", type=click.Path(path_type=Path))(function)


def load_run(path: Path, overrides: tuple[str, ...], options: Options) -> tuple[RunConfig, Plugins]:
    """The run file and its plugins, loaded exactly as listed."""
    config = load(path, overrides)
    return config, load_plugins(config, options)


def load_plugins(config: RunConfig, options: Options) -> Plugins:
    return Plugins().load(select([*config.plugins, *options.plugins], options.blocked))


def assemble(config: RunConfig, plugins: Plugins, run_dir: Path, emit: Callable[[Any], None] | None = None) -> Assembly:
    """The run's assembly, after every plugin was told that this process has started."""
    plugins.process_start(ProcessView("controller", 0, config.name, run_dir))
    return Assembly(config, plugins.registry, run_dir, emit or (lambda event: None))


def verify_manifest(recorded: list[dict[str, str]], plugins: Plugins) -> None:
    """A resumed run, or a worker, loads exactly the recorded plugins in the recorded versions.

    Raises:
        PluginError: one is missing or differs.
    """
    now = {row["name"]: row for row in plugins.manifest()}
    for row in recorded:
        found = now.get(row["name"])
        if found is None or found["version"] != row["version"] or found["dist"] != row["dist"]:
            raise PluginError(
                f"plugin {row['name']} is not what the run was started with",
                expected=f"{row['dist']} {row['version']}",
                found=f"{found['dist']} {found['version']}" if found else "not loaded",
                fix=f"pip install {row['dist']}=={row['version']}",
            )
        if row.get("source") and found["source"] != row["source"]:
            click.echo(f"composer-run: note: the source of plugin {row['name']} has changed since the start", err=True)


def restructure(data: dict[str, Any], where: Path) -> RunConfig:
    """A resolved config.json back to a RunConfig."""
    clean = {key: value for key, value in data.items() if value is not None}
    clean["stages"] = [{k: v for k, v in stage.items() if v is not None} for stage in data["stages"]]
    return structure(clean, str(where))


def run_async(main: Callable[[], Coroutine[Any, Any, T]], go_on: str = "") -> T:
    """Run a coroutine to its end; SIGINT and SIGTERM cancel it once and let it clean up; `go_on` says how to resume.

    Raises:
        RunInterrupted: a signal arrived; what was committed and journaled is on disk.
    """

    async def supervised() -> T:
        task = asyncio.ensure_future(main())
        loop = asyncio.get_running_loop()
        received: list[str] = []

        def stop(name: str) -> None:
            received.append(name)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number.name)
        try:
            return await task
        except asyncio.CancelledError:
            if not received:
                raise
            raise RunInterrupted("; ".join([f"stopped by {received[0]}", *([go_on] if go_on else [])])) from None
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    return asyncio.run(supervised())
