"""`composer-run top`: a run as it is now, in a terminal or as a page.

On a terminal the picture is drawn anew each second until the run has ended or the reader leaves; elsewhere, and with
`--once`, it is printed once. Nothing is imported for the page unless it is asked for.
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from composer_plugin_top.watch import Watch, refuse_other

PORT = 7078
EVERY_S = 1.0
ENDS = ("finished", "interrupted", "failed")


class Port(click.ParamType[int]):
    """A port's number; what stands there instead is most often the folder."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if str(value).isdecimal() and int(value) < 1 << 16:
            return int(value)
        fix = "put RUN_DIR before --web, or write --web=PORT"
        return self.fail(f"expected a port (0 to 65535; 0 is any that is free), found {value!r}: {fix}", param, ctx)


@click.command(name="top", short_help="Watch a run: slots, versions, staleness, throughput, voids.")
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print once, as where there is no terminal.")
@click.option(
    "--web",
    "port",
    type=Port(),
    is_flag=False,
    flag_value=str(PORT),
    metavar="[PORT]",
    help=f"Serve a live page at this machine's loopback, on port {PORT} if none is named.",
)
def command(run_dir: Path, once: bool, port: int | None) -> None:
    """Watch a run: slots by state, workers, versions, staleness, throughput and voids, as they are now.

    Reads RUN_DIR and writes nothing, so it works beside a run, and for one that has finished or was killed; it says how
    old its figures are. Ctrl-C leaves.
    """
    refuse_other(run_dir)
    if once and port is not None:
        raise click.UsageError("--once prints, --web serves: choose one")
    watch = Watch(run_dir)
    if port is not None:
        _serve(watch, port)
    elif once or not sys.stdout.isatty():
        _print(watch)
    else:
        _live(watch)


def _print(watch: Watch) -> None:
    from composer_plugin_top.text import printed

    click.echo(printed(watch.look(math.inf)), nl=False)


def _live(watch: Watch) -> None:
    """In the terminal's other screen, which leaves the shell's lines as they were; the last picture stays."""
    from rich.live import Live

    from composer_plugin_top.text import drawn, make_console

    console, picture = make_console(), watch.look()
    with suppress(KeyboardInterrupt), Live(drawn(picture), console=console, screen=True, auto_refresh=False) as live:
        while picture["state"]["word"] not in ENDS:
            live.update(drawn(picture), refresh=True)
            time.sleep(EVERY_S)
            picture = watch.look()
    console.print(drawn(picture))


def _serve(watch: Watch, port: int) -> None:
    import asyncio
    import signal

    from composer_plugin_top.site import serve

    async def until_stopped() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with serve(watch, port) as url:
            click.echo(f"composer-run top: {url}")
            await stop.wait()

    asyncio.run(until_stopped())
