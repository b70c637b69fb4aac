"""`composer-run microvm`: make the image, boot a machine, clone it; say what that took and what it promises here."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import click

from composer_core.errors import BackendError
from composer_core.protocols import BuildContext, Created, ExecRequest, TemplateSpec
from composer_core.records import SandboxSpec, resolve
from composer_core.trees import Tree
from composer_plugin_microvm.config import QemuConfig
from composer_plugin_microvm.drivers import promise
from composer_plugin_microvm.plugin import composer_sandboxes

SPECS: dict[str, SandboxSpec] = {spec.name: spec for spec in composer_sandboxes()}


@click.command(name="microvm")
@click.option(
    "--component", type=click.Choice(list(SPECS)), default="qemu", show_default=True, help="Who runs the machines."
)
@click.option("--suite", default=QemuConfig().suite, show_default=True, help="Debian release of the image.")
@click.option("--package", "packages", multiple=True, help="A Debian package of the image; give all. [default: three]")
@click.option("--rootfs", default="", help="Folder or tar archive to make the image from instead.")
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for images. [default: the user's cache folder]")
def command(component: str, suite: str, packages: tuple[str, ...], rootfs: str, cache: Path | None) -> None:
    """Make the image of virtual machines before a run needs it, and try it out.

    The other options are those of the run file under [sandbox], and name the same image.
    """
    wanted, spec = packages or QemuConfig().packages, SPECS[component]
    config = spec.config(suite=suite, packages=wanted, rootfs=rootfs, cache=str(cache or ""))
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("composer_plugin_microvm")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        asyncio.run(_try(resolve(spec.factory)(config, BuildContext(Path()))))
    finally:
        logger.removeHandler(handler)


async def _try(provider: Any) -> None:
    tree = Tree.of({"file": "text\n"})
    try:
        template = await provider.prepare(TemplateSpec(tree.ref), tree)
        started = time.perf_counter()
        (child,) = await provider.create(template)
        if not isinstance(child, Created):
            raise BackendError("no machine could be cloned", found=child.error)
        result = await child.backend.exec(ExecRequest(("cat", "file")))
        took = time.perf_counter() - started
        click.echo(f"a clone has run a command after {took * 1e3:.0f} ms: {result.stdout.decode().strip()}")
        click.echo(promise(provider.driver))
    finally:
        await provider.close()
