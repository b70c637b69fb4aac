"""`composer-run reference`: the reference run files as files of one's own, to be run and changed from there.

Installing the distribution brings every plugin that they name, and no component of its own: what the files choose,
any run file can.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from composer_core.errors import UserError

FILES = ("composer.toml", "cluster.toml")


@click.command(name="reference", short_help="Write the reference run files into a folder.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
def command(folder: Path) -> None:
    """Write composer.toml and cluster.toml into FOLDER, the current one if none is named."""
    targets = [folder / name for name in FILES]
    for target in targets:
        if target.exists():
            fix = "name another folder, or move the file away"
            raise UserError("there is such a file already; nothing was written", where=str(target), fix=fix)
    folder.mkdir(parents=True, exist_ok=True)
    for target in targets:
        target.write_bytes(files("composer_reference").joinpath(target.name).read_bytes())
    click.echo(f"wrote {' and '.join(map(str, targets))}; on one machine:")
    click.echo(f"  composer-run check {targets[0]}")
    click.echo(f"  composer-run train {targets[0]}   # takes hours")
