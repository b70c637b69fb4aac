"""Find, select, check, register and report plugins, and hand the list to other processes.

Loading never chooses: exactly the named plugins are loaded, and components are chosen by key in the run file. Asked
for and missing, broken or incompatible stops the run with the plugin, dist, version, cause and fix. Only
`composer-run plugins` looks at everything that is installed, and it imports thin modules alone.

Not here: what a record means (`registry`, `records`) and anything that runs during an episode.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any

import pluggy
from attrs import define, field, frozen

from composer_core import hookspecs
from composer_core.errors import ComposerError, PluginError, boundary, did_you_mean
from composer_core.hookspecs import PROJECT, REGISTRATION_HOOKS
from composer_core.registry import Registry

GROUP = "composer.plugins"
BUILTIN = "core"
BUILTIN_MODULE = "composer_core.builtin"


@frozen
class Candidate:
    """An installed plugin, known from package metadata alone."""

    name: str
    module: str
    dist: str
    version: str

    @property
    def who(self) -> str:
        return f"{self.name} ({self.dist} {self.version})"


@frozen
class Loaded:
    """A plugin that was imported and registered."""

    candidate: Candidate
    import_ms: float
    components: tuple[str, ...] = ()


@frozen
class Row:
    """One line of `composer-run plugins`."""

    name: str
    dist: str
    version: str
    state: str
    """loaded, available, blocked, failed or incompatible."""
    why: str = ""
    import_ms: float = 0.0
    components: tuple[str, ...] = ()


def folded(name: str) -> str:
    """Plugin names compare with '-' and '_' alike."""
    return name.replace("_", "-").lower()


def candidates() -> dict[str, Candidate]:
    """All installed plugins by name.

    Raises:
        PluginError: two distributions offer the same plugin name.
    """
    found: dict[str, Candidate] = {}
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        dist = entry.dist.name if entry.dist else "?"
        version = entry.dist.version if entry.dist else "?"
        candidate = Candidate(folded(entry.name), entry.value, dist, version)
        other = found.get(candidate.name)
        if other and other != candidate:
            raise PluginError(
                f"two distributions offer the plugin {candidate.name!r}",
                who=f"{other.dist} {other.version} and {dist} {version}",
                fix="uninstall one of them",
            )
        found[candidate.name] = candidate
    return found


def select(
    names: Sequence[str], blocked: Iterable[str] = (), known: dict[str, Candidate] | None = None
) -> list[Candidate]:
    """The candidates for the listed names, in listed order, built-ins first.

    Raises:
        PluginError: a name is not installed, or is both asked for and blocked.
    """
    installed = candidates() if known is None else known
    shut = {folded(name) for name in blocked}
    if BUILTIN in shut:
        raise PluginError("the built-in plugin 'core' cannot be blocked", where="-p no:core")
    chosen = [Candidate(BUILTIN, BUILTIN_MODULE, "composer-core", _core_version())]
    for name in dict.fromkeys(folded(name) for name in names):
        if name in shut or name == BUILTIN:
            continue
        if name not in installed:
            hint = did_you_mean(name, installed)
            fix = f"{hint}; a plugin is an installed distribution with an entry point in the group {GROUP!r}"
            raise PluginError(f"plugin {name!r} is not installed", where="plugins", found=name, fix=fix)
        chosen.append(installed[name])
    return chosen


@define
class Plugins:
    """The plugins of one process: imported, verified, registered."""

    registry: Registry = field(factory=Registry)
    loaded: list[Loaded] = field(factory=list)
    _manager: pluggy.PluginManager = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)

    def load(self, chosen: Sequence[Candidate]) -> Plugins:
        """Import and register each candidate; the first listed registers first."""
        for candidate in chosen:
            started = time.perf_counter()
            module = import_hook_module(candidate)
            import_ms = (time.perf_counter() - started) * 1e3
            self.register(candidate, module, import_ms)
        return self

    def register(self, candidate: Candidate, module: Any, import_ms: float = 0.0) -> None:
        """Verify one hook module and collect its records."""
        verify(candidate, module)
        try:
            self._manager.register(module, candidate.name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(
                f"plugin {candidate.name} does not fit the hooks",
                who=candidate.who,
                found=" ".join(str(error).split()),
                expected="the signatures in composer_core.hookspecs",
            ) from error
        self.loaded.append(Loaded(candidate, import_ms, self._collect(candidate, module)))

    def _collect(self, candidate: Candidate, module: Any) -> tuple[str, ...]:
        components: list[str] = []
        for hook, kind in REGISTRATION_HOOKS.items():
            if not hasattr(module, hook):
                continue
            others = [plugin for plugin in self._manager.get_plugins() if plugin is not module]
            caller = self._manager.subset_hook_caller(hook, others)
            with boundary("hook", f"{candidate.name}.{hook}"):
                specs = [spec for yielded in caller() for spec in yielded]
            for spec in specs:
                self.registry.add(kind, candidate.name, spec, dist=candidate.dist, version=candidate.version)
                components.append(f"{kind} {candidate.name}/{spec.name}")
        return tuple(components)

    def check(self, run: hookspecs.RunView) -> list[hookspecs.Problem]:
        """All problems that the loaded plugins' `composer_check` hooks report, in listed order."""
        problems: list[hookspecs.Problem] = []
        for item in self.loaded:
            module: Any = self._manager.get_plugin(item.candidate.name)
            if hasattr(module, "composer_check"):
                with boundary("hook", f"{item.candidate.name}.composer_check"):
                    problems.extend(module.composer_check(run) or ())
        return problems

    def process_start(self, process: hookspecs.ProcessView) -> None:
        for item in self.loaded:
            module: Any = self._manager.get_plugin(item.candidate.name)
            if hasattr(module, "composer_process_start"):
                with boundary("hook", f"{item.candidate.name}.composer_process_start"):
                    module.composer_process_start(process)

    def manifest(self) -> list[dict[str, str]]:
        """What is written to plugins.json and handed to workers."""
        return [
            {"name": one.name, "dist": one.dist, "version": one.version, "module": one.module, "source": source_of(one)}
            for one in (item.candidate for item in self.loaded)
            if one.name != BUILTIN
        ]

    def close(self) -> None:
        """Forget the modules (tests load the same module twice)."""
        for plugin in list(self._manager.get_plugins()):
            self._manager.unregister(plugin)


def import_hook_module(candidate: Candidate) -> ModuleType:
    """Import a plugin's hook module.

    Raises:
        PluginError: anything went wrong; names the plugin, its dist, the cause.
    """
    try:
        return importlib.import_module(candidate.module.partition(":")[0])
    except Exception as error:
        raise PluginError(
            f"plugin {candidate.name} could not be imported",
            who=candidate.who,
            where=candidate.module,
            found=f"{type(error).__name__}: {error}",
            fix=f"reinstall it (pip install --force-reinstall {candidate.dist}) or leave it out of plugins",
        ) from error


def verify(candidate: Candidate, module: Any) -> None:
    """What pluggy does not check: the API integer, hook names, async and wrapped hooks.

    Raises:
        PluginError: the module cannot be registered.
    """
    from composer_core import API  # the package imports this module's clients

    found = getattr(module, "COMPOSER_API", None)
    if found != API:
        raise PluginError(
            f"plugin {candidate.name} was written for another API",
            who=candidate.who,
            where=candidate.module,
            expected=f"COMPOSER_API = {API}",
            found=f"COMPOSER_API = {found!r}",
            fix="install a version of the plugin that matches this composer-core, or the reverse",
        )
    known = {name for name in vars(hookspecs) if name.startswith("composer_")}
    for name, value in vars(module).items():
        if not name.startswith("composer_") or not callable(value) or inspect.ismodule(value):
            continue
        if name not in known:
            raise PluginError(
                f"plugin {candidate.name} implements an unknown hook {name!r}",
                who=candidate.who,
                fix=did_you_mean(name, known),
            )
        marks = getattr(value, f"{PROJECT}_impl", None)
        if marks is None:
            raise PluginError(
                f"plugin {candidate.name} defines {name} without @hookimpl", who=candidate.who, fix="mark it @hookimpl"
            )
        if inspect.iscoroutinefunction(value) or marks.get("wrapper") or marks.get("hookwrapper"):
            raise PluginError(
                f"hook {name} of plugin {candidate.name} must be a plain function",
                who=candidate.who,
                expected="def, no async, no wrapper",
            )


def source_of(candidate: Candidate) -> str:
    """sha256 over an editable install's Python files, "" for a regular one; workers compare it."""
    import hashlib
    import json
    from pathlib import Path

    try:
        text = metadata.distribution(candidate.dist).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    if not text or not json.loads(text).get("dir_info", {}).get("editable"):
        return ""
    package = importlib.import_module(candidate.module.partition(".")[0])
    digest = hashlib.sha256()
    for root in package.__path__:
        for path in sorted(Path(root).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def report(names: Sequence[str] = (), blocked: Iterable[str] = ()) -> list[Row]:
    """Every installed plugin with its state; a broken one is a row, never an exception."""
    shut = {folded(name) for name in blocked}
    asked = {folded(name) for name in names}
    rows = []
    for candidate in [Candidate(BUILTIN, BUILTIN_MODULE, "composer-core", _core_version()), *candidates().values()]:
        who = (candidate.name, candidate.dist, candidate.version)
        if candidate.name in shut:
            rows.append(Row(*who, state="blocked", why=f"-p no:{candidate.name}"))
            continue
        plugins = Plugins()
        try:
            plugins.load([candidate])
        except ComposerError as error:
            state = "incompatible" if "another API" in error.message else "failed"
            rows.append(Row(*who, state=state, why=str(error)))
            continue
        named = candidate.name in asked or candidate.name == BUILTIN
        why = "built in" if candidate.name == BUILTIN else "named" if named else "not named in this run"
        item = plugins.loaded[0]
        rows.append(Row(*who, "loaded" if named else "available", why, item.import_ms, item.components))
    return rows


def _core_version() -> str:
    from composer_core import __version__

    return __version__
