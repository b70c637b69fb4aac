"""`composer-run envd`: serve the sandboxes of this machine, and a page that shows them."""

from __future__ import annotations

from pathlib import Path

import click

from composer_core.cli import Options


@click.command(name="envd")
@click.argument("envd_toml", type=click.Path(path_type=Path), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, such as server.port=0.")
@click.pass_obj
def command(options: Options, envd_toml: Path | None, overrides: tuple[str, ...]) -> None:
    """Serve this machine's sandboxes to runs that use server/remote.

    ENVD_TOML names the plugins, the provider under [sandbox] with its settings, and what [server], [admission] and
    [pools] may hold; --plugins and --set do without a file. Prints its address when it is ready; SIGINT or SIGTERM
    destroys everything and ends it.
    """
    from composer_plugin_server.main import main

    main(envd_toml, overrides, options)
