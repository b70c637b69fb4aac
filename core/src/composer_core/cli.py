"""`composer-run`: a lazy click group. A command's module is imported when it runs; its help line is stored here.

Commands of plugins are entry points of the group `composer.commands`, read as metadata and imported when called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from io import StringIO
from typing import Any

import click

from composer_core import __version__
from composer_core.errors import ComposerError, PluginError, PluginFault, RunInterrupted, UserError, pip_fix
from composer_core.printable import printable

__all__ = ["COMMAND_GROUP", "Options"]

COMMANDS = {
    "train": "Run the stages of a run file, or resume a run.",
    "eval": "Evaluate the policy of a run file or a run folder.",
    "check": "Say what a run file would do, and what is wrong with it.",
    "validate": "Grade the gold answer, nothing, and every exploit of each task.",
    "plugins": "List plugins and their components.",
    "agent": "Let the policy of a run work on a folder, and accept or reject its diff.",
    "show": "A run, or one trace of it, as a page of text.",
}
COMMAND_GROUP = "composer.commands"
OFFERED = {
    "doctor": "composer-plugin-doctor",
    "export": "composer-plugin-traces",
    "import": "composer-plugin-traces",
    "new": "composer-testing",
    "reference": "composer-reference",
    "top": "composer-plugin-top",
}
"""Commands of our own distributions that may not be installed, and which brings them."""


class Options:
    """What the group's options hold for every command, which gets them by `click.pass_obj`.

    `plugins` are the names after --plugins and `blocked` those after -p no:, as they were written; the latter are all
    installed. `debug`: errors are to show their traceback. A plain class: importing attrs for it alone would make
    `--help` slower by a seventh.
    """

    def __init__(self, plugins: tuple[str, ...] = (), blocked: tuple[str, ...] = (), debug: bool = False) -> None:
        self.plugins = plugins
        self.blocked = blocked
        self.debug = debug


class LazyGroup(click.Group):
    """Lists commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(entry.name for entry in _extra())]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            found: click.Command = import_module(f"composer_core.commands.{name}").command
            return found
        for entry in _extra():
            if entry.name == name:
                return _loaded(entry)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [*COMMANDS.items(), *((entry.name, f"from {_dist(entry)}") for entry in _extra())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        from composer_core.errors import did_you_mean

        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            if name in OFFERED:
                fix = f"pip install {OFFERED[name]}"
                raise UserError(f"the command {name!r} is part of {OFFERED[name]}, which is not installed", fix=fix)
            ctx.fail(f"no command {name!r}: {did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def _extra() -> list[metadata.EntryPoint]:
    found = (entry for entry in metadata.entry_points(group=COMMAND_GROUP) if entry.name not in COMMANDS)
    return sorted(found, key=lambda entry: entry.name)


def _loaded(entry: metadata.EntryPoint) -> click.Command:
    try:
        loaded: click.Command = entry.load()
    except (Exception, SystemExit) as error:
        whose = f"{_dist(entry)} {entry.dist.version if entry.dist else ''}".rstrip()
        found = f"{type(error).__name__}: {error}"
        text = f"the command {entry.name!r} could not be imported"
        raise PluginError(text, who=whose, where=entry.value, found=found, fix=pip_fix(error, entry.module)) from error
    return loaded


def _dist(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--plugins", default="", metavar="A,B", help="Load these plugins beside the run file's.")
@click.option("-p", "switches", multiple=True, metavar="no:NAME", help="Block a plugin.")
@click.version_option(__version__, message="%(prog)s %(version)s", help="Print the version.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.pass_context
def group(ctx: click.Context, plugins: str, switches: tuple[str, ...], debug: bool) -> None:
    """Train coding agents with reinforcement learning; everything is a plugin."""
    blocked = []
    for switch in switches:
        if not switch.startswith("no:") or len(switch) == 3:
            raise click.BadParameter(f"expected no:NAME, found {switch!r}", param_hint="-p")
        blocked.append(switch[3:])
    if blocked:
        from composer_core.plugins import installed, select

        # a name that means nothing is refused, whichever the command; a name that two offer is what `plugins` shows
        select((), blocked, {one.name: one for one in installed()})
    ctx.obj = Options(tuple(filter(None, map(str.strip, plugins.split(",")))), tuple(blocked), debug)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; errors made by a person end with exit code 2 and no traceback unless --debug."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = group.main(args=argv, prog_name="composer-run", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.option_name in {
            name for one in group.params for name in one.opts
        }:
            error = click.UsageError(
                f"{error.option_name} stands before the command: composer-run {error.option_name} ...", error.ctx
            )
        said = StringIO()
        error.show(said)
        click.echo(printable(said.getvalue()), err=True, nl=False)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("composer-run: interrupted", err=True)
        code = RunInterrupted.exit_code
    except ComposerError as error:
        if "--debug" in argv:
            raise
        for text in (str(error), *getattr(error, "__notes__", ())):
            click.echo(f"composer-run: {printable(text)}", err=True)
        if isinstance(error, PluginFault):
            click.echo("composer-run: --debug shows the traceback", err=True)
        code = error.exit_code
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
