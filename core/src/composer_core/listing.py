"""Everything that is installed as a plugin, each with its state: what `composer-run plugins` shows.

Each plugin is imported and registered alone, so one that is broken is a row and never an exception, and two that
contradict each other are both shown. Import times are of this process: a module is imported once, and what several
plugins share is charged to the first of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import frozen

from composer_core.errors import ComposerError, IncompatiblePlugin
from composer_core.plugins import BUILTIN, Candidate, Plugins, builtin, folded, installed, select
from composer_core.registry import Entry

__all__ = ["STATES", "Row", "report"]

STATES = ("loaded", "available", "blocked", "failed", "incompatible")


@frozen
class Row:
    """One plugin."""

    name: str
    dist: str
    version: str
    state: str
    """One of STATES: loaded (named, or built in), available (works, is not named), blocked, failed, incompatible."""
    why: str = ""
    """What put it into this state; of an available one, how to load it."""
    import_ms: float | None = None
    """Wall clock of importing its hook module here; None where that was not done, or had been done before."""
    components: tuple[Entry, ...] = ()


def report(names: Sequence[str] = (), blocked: Iterable[str] = ()) -> list[Row]:
    """Every installed plugin, the built-in one first; `names` are those that a run would load.

    Raises:
        PluginError: `names` or `blocked` hold a name that is not installed.
    """
    found = installed()
    shut = {folded(name) for name in blocked}
    select(names, shut, {one.name: one for one in found})
    asked = {BUILTIN, *(folded(name) for name in names)}
    times = Counter(one.name for one in found)
    return [_row(one, one.name in asked, one.name in shut, times[one.name] > 1) for one in [builtin(), *found]]


def _row(candidate: Candidate, asked: bool, shut: bool, twice: bool) -> Row:
    name, who = candidate.name, (candidate.name, candidate.dist, candidate.version)
    if shut:
        return Row(*who, "blocked", f"-p no:{name}")
    if twice:
        return Row(*who, "failed", f"two distributions offer the plugin {name!r}: uninstall one of them")
    plugins = Plugins()
    try:
        plugins.load([candidate])
    except ComposerError as error:
        return Row(*who, "incompatible" if isinstance(error, IncompatiblePlugin) else "failed", str(error))
    why = "built in" if name == BUILTIN else "named" if asked else f'plugins = ["{name}"], or --plugins {name}'
    state = "loaded" if asked else "available"
    return Row(*who, state, why, plugins.loaded[0].import_ms, tuple(plugins.registry))
