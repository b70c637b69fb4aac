"""What the commands share: options, loading plugins and the run file, running the event loop."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from composer_core.assembly import Assembly
from composer_core.choices import Choices
from composer_core.cli import Options
from composer_core.config import RunConfig, read, sound
from composer_core.errors import ConfigError, PluginError, RunInterrupted, UserError
from composer_core.hookspecs import ProcessView
from composer_core.plugins import BUILTIN, Plugins, folded, select
from composer_core.plugins import verify_manifest as compare_manifest
from composer_core.problems import refuse, told
from composer_core.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def run_file(function: F) -> F:
    """RUN.toml and --set of every command that reads a run file."""
    function = click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, such as stages.rl.steps=3."
    )(function)
    return click.argument("run_toml", type=click.Path(path_type=Path))(function)


def load_run(path: Path, overrides: tuple[str, ...], options: Options) -> tuple[RunConfig, Plugins]:
    """The run file and its plugins, loaded exactly as listed, with every setting structured.

    Raises:
        PluginError: a plugin cannot be loaded.
        ConfigError: something else does not fit; whatever can be found without the rest is in one message.
    """
    where = " --set ".join([str(path), *overrides])
    config, problems = sound(read(path, overrides))
    try:
        if config:
            plugins = load_plugins(config, options)
            Choices(config, plugins.registry).view()
    except UserError as error:
        if isinstance(error, PluginError) and not problems:
            raise
        problems += told(error)
    refuse(problems, where, ConfigError)
    assert config
    names = tuple(item.candidate.name for item in plugins.loaded if item.candidate.name != BUILTIN)
    return attrs.evolve(config, plugins=names), plugins  # what is written down loads the same, here and in workers


def load_plugins(config: RunConfig, options: Options) -> Plugins:
    chosen = select([*config.plugins, *options.plugins], options.blocked)
    return Plugins(Registry(blocked=frozenset(map(folded, options.blocked)))).load(chosen)


def assemble(config: RunConfig, plugins: Plugins, run_dir: Path, emit: Callable[[Any], None] | None = None) -> Assembly:
    """The run's assembly, after every plugin was told that this process has started."""
    plugins.process_start(ProcessView("controller", 0, config.name, run_dir))
    return Assembly(config, plugins.registry, run_dir, emit or (lambda event: None))


def verify_manifest(recorded: list[dict[str, str]], plugins: Plugins) -> None:
    """A resumed run has exactly the recorded plugins in the recorded versions; a changed source is worth a note.

    Raises:
        PluginError: one is missing or differs.
    """
    for name in compare_manifest(recorded, plugins):
        click.echo(f"composer-run: note: the source of plugin {name} has changed since the start", err=True)


def link_tokenizer(run: Path, scratch: Path) -> None:
    """Into a scratch folder the policy's own tokenizer, so that none is trained anew."""
    if (run / "tokenizer").is_dir():
        (scratch / "tokenizer").symlink_to((run / "tokenizer").resolve(), target_is_directory=True)


COLLECTIONS = (50_000, 10, 10)
"""Thresholds of Python's garbage collector: an episode outlives the default of 700 new objects by far, and with 100,000
in flight each would be looked at again and again, at half the cost of the whole control plane."""


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
            if not received:
                task.cancel()
            received.append(name)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number.name)
        try:
            return await task
        except asyncio.CancelledError as error:
            if not received:
                raise
            stopped = RunInterrupted("; ".join([f"stopped by {received[0]}", *([go_on] if go_on else [])]))
            for note in getattr(error, "__notes__", ()):
                stopped.add_note(note)
            raise stopped from None
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    gc.set_threshold(*COLLECTIONS)
    return asyncio.run(supervised())
