"""Find, select, check, register and report plugins, and hand the list to other processes.

Loading never chooses: exactly the named plugins are loaded, and components are chosen by key in the run file. Asked
for and missing, broken or incompatible stops the run with the plugin, dist, version, cause and fix. Workers load the
list that the run was started with (`load_manifest`), in the same versions.

Not here: the listing of everything that is installed (`listing`), what a record means (`registry`, `records`) and
anything that runs during an episode.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
from attrs import define, field, frozen

from composer_core import API, __version__, hookspecs
from composer_core.errors import IncompatiblePlugin, PluginError, boundary, did_you_mean, pip_fix, record_owner
from composer_core.hookspecs import PROJECT, REGISTRATION_HOOKS
from composer_core.records import SPECS
from composer_core.registry import Registry, wrapped

__all__ = [
    "BUILTIN",
    "GROUP",
    "Candidate",
    "Loaded",
    "Plugins",
    "candidates",
    "folded",
    "load_manifest",
    "select",
    "verify",
    "verify_manifest",
]

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
        return f"{self.name} of {self.dist} {self.version}"


@frozen
class Loaded:
    """A plugin that was imported and registered."""

    candidate: Candidate
    import_ms: float | None
    """Of its hook module alone; None where the process had imported that before."""
    components: tuple[str, ...] = ()


def folded(name: str) -> str:
    """Plugin names compare with '-' and '_' alike."""
    return name.replace("_", "-").lower()


def installed() -> list[Candidate]:
    """All installed plugins, sorted by name; nothing is imported."""
    found = []
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        dist, version = (entry.dist.name, entry.dist.version) if entry.dist else ("?", "?")
        found.append(Candidate(folded(entry.name), entry.value, dist, version))
    return found


def builtin() -> Candidate:
    return Candidate(BUILTIN, BUILTIN_MODULE, "composer-core", __version__)


def candidates() -> dict[str, Candidate]:
    """All installed plugins by name.

    Raises:
        PluginError: two distributions offer the same plugin name.
    """
    found: dict[str, Candidate] = {}
    for candidate in installed():
        other = found.setdefault(candidate.name, candidate)
        if other != candidate:
            raise PluginError(
                f"two distributions offer the plugin {candidate.name!r}",
                who=f"{other.dist} {other.version} and {candidate.dist} {candidate.version}",
                fix="uninstall one of them",
            )
    return found


def select(
    names: Sequence[str], blocked: Iterable[str] = (), known: dict[str, Candidate] | None = None
) -> list[Candidate]:
    """The candidates for the listed names, in listed order, built-ins first.

    Raises:
        PluginError: a name is not installed, or a built-in is blocked.
    """
    offered = candidates() if known is None else known
    shut = {folded(name) for name in blocked}
    if BUILTIN in shut:
        raise PluginError("the built-in plugin 'core' cannot be blocked", where="-p no:core")
    for name in sorted(shut - set(offered)):
        hint = did_you_mean(name, offered)
        raise PluginError(f"plugin {name!r} is not installed, so it cannot be blocked", where=f"-p no:{name}", fix=hint)
    wanted = [name for name in dict.fromkeys(map(folded, names)) if name not in shut | {BUILTIN}]
    if missing := [name for name in wanted if name not in offered]:
        hints = "; ".join(f"{name!r}: {did_you_mean(name, offered)}" for name in missing)
        raise PluginError(
            f"plugin {' and '.join(map(repr, missing))} is not installed",
            where="plugins",
            fix=f"{hints}; a plugin is an installed distribution with an entry point in the group {GROUP!r}",
        )
    return [builtin(), *(offered[name] for name in wanted)]


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
            cold = candidate.module.partition(":")[0] not in sys.modules
            started = time.perf_counter()
            module = import_hook_module(candidate)
            spent_ms = (time.perf_counter() - started) * 1e3
            self.register(candidate, module, spent_ms if cold else None)
        return self

    def register(self, candidate: Candidate, module: Any, import_ms: float | None = None) -> None:
        """Verify one hook module and collect its records."""
        record_owner(candidate.name, candidate.dist, candidate.version)
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
            with boundary("hook", f"{candidate.name}/{hook}"):
                given = getattr(module, hook)()
                specs = list(given) if isinstance(given, Iterable) else None
            if specs is None:
                raise PluginError(
                    f"hook {hook} of plugin {candidate.name} returned no records",
                    who=candidate.who,
                    expected=f"{SPECS[kind].__name__} records, yielded or in a list",
                    found=repr(given),
                    fix=wrapped(kind),
                )
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
                with boundary("hook", f"{item.candidate.name}/composer_check"):
                    problems.extend(module.composer_check(run) or ())
        return problems

    def process_start(self, process: hookspecs.ProcessView) -> None:
        for item in self.loaded:
            module: Any = self._manager.get_plugin(item.candidate.name)
            if hasattr(module, "composer_process_start"):
                with boundary("hook", f"{item.candidate.name}/composer_process_start"):
                    module.composer_process_start(process)

    def manifest(self) -> list[dict[str, str]]:
        """What is written to plugins.json and handed to workers."""
        return [
            {"name": one.name, "dist": one.dist, "version": one.version, "module": one.module, "source": source_of(one)}
            for one in (item.candidate for item in self.loaded)
            if one.name != BUILTIN
        ]


def import_hook_module(candidate: Candidate) -> ModuleType:
    """Import a plugin's hook module.

    Raises:
        PluginError: anything went wrong; names the plugin, its dist, the cause.
    """
    try:
        return importlib.import_module(candidate.module.partition(":")[0])
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"plugin {candidate.name} could not be imported",
            who=candidate.who,
            where=candidate.module,
            found=f"{type(error).__name__}: {error}",
            fix=pip_fix(error, candidate.module)
            or f"reinstall it (pip install --force-reinstall {candidate.dist}) or leave it out of plugins",
        ) from error


def verify(candidate: Candidate, module: Any) -> None:
    """What pluggy does not check: the API integer, hook names, async and wrapped hooks.

    Raises:
        PluginError: the module cannot be registered.
    """
    found = getattr(module, "COMPOSER_API", None)
    if found is None:
        raise IncompatiblePlugin(
            f"plugin {candidate.name} does not say for which API it was written",
            who=candidate.who,
            where=candidate.module,
            fix=f"write COMPOSER_API = {API} at the top of its hook module, to which its entry point leads",
        )
    if found != API:
        raise IncompatiblePlugin(
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

    try:
        text = metadata.distribution(candidate.dist).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    if not text or not json.loads(text).get("dir_info", {}).get("editable"):
        return ""
    package = importlib.import_module(candidate.module.partition(".")[0])
    digest = hashlib.sha256()
    for root in map(Path, getattr(package, "__path__", [package.__file__])):
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def load_manifest(recorded: Sequence[Mapping[str, str]]) -> Plugins:
    """Load exactly the plugins of a run's `Plugins.manifest` into this process, as every worker does.

    Raises:
        PluginError: one is missing, broken, or not what the run was started with, its source included.
    """
    chosen = select([row["name"] for row in recorded])
    _same_versions(recorded, {one.name: one for one in chosen})
    plugins = Plugins().load(chosen)
    for name in verify_manifest(recorded, plugins):
        fix = "install the same source everywhere, or wheels instead of editable installs"
        raise PluginError(f"the source of plugin {name} is not what the run was started with", who=name, fix=fix)
    return plugins


def verify_manifest(recorded: Sequence[Mapping[str, str]], plugins: Plugins) -> list[str]:
    """Names of the recorded plugins whose source has changed since, all loaded in the recorded versions.

    Raises:
        PluginError: one is missing or differs.
    """
    _same_versions(recorded, {item.candidate.name: item.candidate for item in plugins.loaded})
    now = {row["name"]: row["source"] for row in plugins.manifest()}
    return [row["name"] for row in recorded if row.get("source") and now[row["name"]] != row["source"]]


def _same_versions(recorded: Sequence[Mapping[str, str]], found: Mapping[str, Candidate]) -> None:
    for row in recorded:
        one = found.get(row["name"])
        if one is None or (one.dist, one.version) != (row["dist"], row["version"]):
            raise PluginError(
                f"plugin {row['name']} is not what the run was started with",
                expected=f"{row['dist']} {row['version']}",
                found=f"{one.dist} {one.version}" if one else "not loaded",
                fix=f"pip install {row['dist']}=={row['version']}",
            )
