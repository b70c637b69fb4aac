"""(kind, "plugin/name") -> record. Duplicates are errors; a bare name is allowed where it is unique.

The registry knows records, not objects: building is the pipeline's work. It is sorted by id, so nothing depends on
the order in which plugins were loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from attrs import define, field, frozen

from composer_core.errors import ConfigError, PluginError, did_you_mean
from composer_core.records import SPECS, Spec

S = TypeVar("S", bound=Spec)


def wrapped(kind: str) -> str:
    """The fix where a hook gives something that is no record, such as the function itself."""
    cls = SPECS[kind]
    made = f"{cls.__name__}.of" if hasattr(cls, "of") else cls.__name__
    return f"yield {made}(...), as in the example of hookspecs.composer_{kind}"


@frozen
class Entry:
    """One registered component."""

    id: str
    plugin: str
    dist: str
    version: str
    spec: Spec


@define
class Registry:
    """All components of the loaded plugins."""

    _entries: dict[tuple[str, str], Entry] = field(factory=dict)
    blocked: frozenset[str] = frozenset()
    """Plugins that a person has blocked, so that a run that needs one is told what to leave out."""

    def add(self, kind: str, plugin: str, spec: Spec, *, dist: str = "", version: str = "") -> None:
        """Register one record.

        Raises:
            PluginError: the record is of another kind, or its id is taken.
        """
        expected = SPECS[kind]
        if not isinstance(spec, expected):
            raise PluginError(
                f"plugin {plugin} yielded a {type(spec).__name__} where {kind} are registered",
                who=f"{plugin} ({dist} {version})",
                expected=expected.__name__,
                found=repr(spec),
                fix=f"yield it from the hook composer_{spec.kind}" if isinstance(spec, Spec) else wrapped(kind),
            )
        key = (kind, f"{plugin}/{spec.name}")
        taken = self._entries.get(key)
        if taken:
            raise PluginError(
                f"two components claim the id {key[1]!r} among {kind}",
                who=f"{dist} {version} and {taken.dist} {taken.version}",
                expected="one component for each id",
                fix="rename one of them, or load only one of the plugins",
            )
        self._entries[key] = Entry(key[1], plugin, dist, version, spec)

    def find(self, kind: str, name: str, *, where: str = "") -> Entry:
        """The component that `name` ("plugin/name", or a unique bare name) means.

        Raises:
            ConfigError: nothing, or more than one thing, is meant.
        """
        entries = {entry.id: entry for entry in self.of(kind)}
        if name in entries:
            return entries[name]
        bare = [entry for entry in entries.values() if entry.spec.name == name]
        if len(bare) == 1:
            return bare[0]
        if bare:
            found = ", ".join(entry.id for entry in bare)
            raise ConfigError(f"{name!r} is ambiguous among {kind}", where=where, found=found, fix="write plugin/name")
        plugin = name.partition("/")[0]
        loaded = any(entry.plugin == plugin for entry in self._entries.values())
        fix = did_you_mean(name, entries)
        if plugin in self.blocked:
            fix = f"leave out -p no:{plugin}, or choose another component"
        elif "/" in name and not loaded:
            meant = f"; {fix}" if fix.startswith("did") else ""
            fix = f"add {plugin!r} to plugins = [...] or --plugins{meant}"
        raise ConfigError(f"no component {name!r} among {kind}", where=where, fix=fix)

    def of(self, kind: str) -> list[Entry]:
        return [self._entries[key] for key in sorted(self._entries) if key[0] == kind]

    def __iter__(self) -> Iterator[Entry]:
        return (self._entries[key] for key in sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
