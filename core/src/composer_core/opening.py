"""Sandboxes without a run: for scripts, notebooks, and whoever tries a provider out.

What a run does to a provider is done here too: its settings are structured strictly, its plugin checks them, and its
errors carry its name. Nothing is probed; `Sandboxes.probe` tells what works here.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from composer_core.config import SandboxLimits, settings_for
from composer_core.errors import TemplateMissing, boundary
from composer_core.hookspecs import RunView
from composer_core.plugins import Plugins, select
from composer_core.problems import refuse
from composer_core.protocols import BuildContext
from composer_core.records import resolve
from composer_core.sandbox import Sandboxes
from composer_core.trees import TreeRef

__all__ = ["open_sandboxes"]


@asynccontextmanager
async def open_sandboxes(
    use: str, settings: Mapping[str, Any] | None = None, limits: SandboxLimits | None = None
) -> AsyncIterator[Sandboxes]:
    """The sandboxes of the component `use` ("local/namespaces"); at the end all that were made are destroyed.

    `settings` are the keys beside `sandbox.use` in a run file. Workspaces are made known by `Sandboxes.offer`.

    Raises:
        PluginError: its plugin is not installed.
        ConfigError: it has no such component, or a setting does not fit.
        CheckError: its plugin refuses the settings.
    """
    plugins = Plugins().load(select([use.partition("/")[0]]))
    entry = plugins.registry.find("sandboxes", use)
    spec: Any = entry.spec
    config: Any = settings_for(spec.config, settings or {}, "sandbox")
    chosen = {"sandboxes": ((entry.id, config),)}
    refuse(plugins.check(RunView(None, chosen, {"sandboxes": ((entry.id, spec),)})), entry.id)
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        with boundary("sandboxes", entry.id):
            provider = resolve(spec.factory)(config, BuildContext(Path(folder)))
        made = Sandboxes(provider, entry.id, _unknown, limits)
        try:
            yield made
        finally:
            await made.close()


def _unknown(ref: TreeRef) -> NoReturn:
    raise TemplateMissing(
        "this workspace was not offered", found=ref.sha256, fix="Sandboxes.offer(tree) makes it known"
    )
