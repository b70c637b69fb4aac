"""`python -m composer_plugin_report RUN_DIR`: write the report of a run folder, also of one still going."""

from __future__ import annotations

from pathlib import Path

import click

from composer_core.errors import ConfigError, UserError
from composer_plugin_report.config import HtmlConfig
from composer_plugin_report.html import write_report


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--traces", default=HtmlConfig().traces, show_default=True, help="Most traces in the page.")
def main(run_dir: Path, traces: int) -> None:
    """Write RUN_DIR/report.html and print its path."""
    try:
        if not (run_dir / "events.jsonl").exists():
            raise ConfigError("no run in this folder", where=str(run_dir), expected="events.jsonl")
        click.echo(write_report(run_dir, HtmlConfig(traces=traces)))
    except UserError as error:
        click.echo(error, err=True)
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main()
