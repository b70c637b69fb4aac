"""The process behind `composer-run envd`: its TOML, its plugins, its signals."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from composer_core.cli import Options
from composer_core.errors import CheckError, ConfigError
from composer_core.hookspecs import RunView
from composer_core.plugins import Plugins, select
from composer_core.protocols import BuildContext, SandboxProvider
from composer_core.records import SandboxSpec, resolve
from composer_plugin_server.server import serve
from composer_plugin_server.settings import Settings
from composer_plugin_server.strict import structured
from composer_plugin_server.tokens import token_place

OWN = "server/remote"


@frozen
class Chosen:
    """A provider that was chosen and not built."""

    id: str
    build: Callable[[Path], SandboxProvider]


def main(path: Path | None, overrides: Sequence[str], options: Options) -> None:
    settings = load(path, overrides)
    chosen = choose(settings, options)
    _many_descriptors()
    logging.basicConfig(format="composer-run envd: %(message)s", level=logging.WARNING)
    asyncio.run(_run(settings, chosen))


def _many_descriptors() -> None:
    """As many as this process may have: each client that waits holds a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _run(settings: Settings, chosen: Chosen) -> None:
    """Until SIGINT or SIGTERM; a second one while everything is destroyed changes nothing."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    token = token_place(settings.server.token_file)
    async with serve(settings, chosen.build, chosen.id) as running:
        if running.reaped:
            _say(f"{running.reaped} left by an earlier server were reaped")
        _say(f"clients need the token in {token}")
        _say(f"{chosen.id} at {running.url}, node {running.node.name}")
        await stop.wait()
        _say(f"asked to end; sandboxes that are destroyed: {running.node.gate.live}")
    _say("ended")


def _say(text: str) -> None:
    click.echo(f"composer-run envd: {text}")


# --- settings -----------------------------------------------------------------------------------------------------


def load(path: Path | None, overrides: Sequence[str]) -> Settings:
    """The file under its overrides.

    Raises:
        ConfigError: it cannot be read, or something in it does not fit.
    """
    data = _read(path) if path else {}
    for text in overrides:
        _set(data, text)
    where = " --set ".join([str(path) if path else "composer-run envd", *overrides])
    sandbox = data.get("sandbox")
    if not isinstance(sandbox, dict) or not isinstance(sandbox.get("use"), str):
        raise ConfigError("no provider is chosen", where=where, expected='[sandbox] with use = "plugin/name"')
    settings = {key: value for key, value in sandbox.items() if key != "use"}
    tables = {**data, "sandbox": {"use": sandbox["use"], "settings": settings}}
    return structured(tables, Settings, "what the server is told", where)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError("the file cannot be read", where=str(path), found=str(error)) from error


def _set(data: dict[str, Any], text: str) -> None:
    """`a.b=value`; what is no TOML value is text."""
    keys, equals, value = text.partition("=")
    if not equals or not all(keys.split(".")):
        raise ConfigError("--set takes KEY=VALUE", found=text)
    *tables, last = keys.split(".")
    for key in tables:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{key!r} is no table", where="--set", found=text)
    try:
        data[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        data[last] = value


# --- the provider -------------------------------------------------------------------------------------------------


def choose(settings: Settings, options: Options) -> Chosen:
    """The provider, checked by its own plugin as for a run.

    Raises:
        ConfigError: there is none of that name, or its settings do not fit.
        CheckError: its plugin refuses it.
    """
    plugins = Plugins().load(select([*settings.plugins, *options.plugins], options.blocked))
    entry = plugins.registry.find("sandboxes", settings.sandbox.use, where="sandbox.use")
    if entry.id == OWN:
        raise ConfigError("a server's provider is no other server's", where="sandbox.use", found=OWN)
    spec: Any = entry.spec
    assert isinstance(spec, SandboxSpec)
    config: Any = structured(settings.sandbox.settings, spec.config, f"what {entry.id} is told", "[sandbox]")
    view = RunView(settings, {"sandboxes": ((entry.id, config),)}, {"sandboxes": ((entry.id, spec),)})
    problems = plugins.check(view)
    if problems:
        lines = [f"{one.where}: {one.message} (fix: {one.fix})" for one in problems]
        raise CheckError("\n  - ".join([f"{entry.id} cannot be served", *lines]))
    factory = resolve(spec.factory)
    return Chosen(entry.id, lambda folder: factory(config, BuildContext(folder)))
