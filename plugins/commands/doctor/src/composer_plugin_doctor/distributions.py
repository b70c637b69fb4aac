"""Whether what is installed fits together: requirements of distributions against what is there, and stale metadata.

Only distributions that concern a run are looked at: core, those that offer plugins or commands, and whatever these
require, down to the leaves. `pip check` would need pip, take a second and speak of everything else as well. A
requirement that cannot be read is a defect like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlparse

from attrs import Factory, define, frozen
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

AGAIN = "pip install --force-reinstall {}, or uninstall it"


@frozen
class Defect:
    """Something that is wrong with an installed distribution."""

    dist: str
    """Canonical name."""
    text: str
    fix: str


@define
class Installed:
    """All distributions on the path of this process, by canonical name; the first of a name is the one in effect."""

    groups: tuple[str, ...]
    """Groups of entry points that make a distribution one of ours."""
    found: dict[str, list[metadata.Distribution]] = Factory(dict)

    @classmethod
    def read(cls, *groups: str) -> Installed:
        self, seen = cls(groups), set()
        for dist in metadata.distributions():
            name = _name(dist)
            key = (name, dist.version if name else "", _place(dist))
            if name and key not in seen:  # a folder may stand on the path twice
                seen.add(key)
                self.found.setdefault(name, []).append(dist)
        return self

    def ours(self) -> list[str]:
        """Core and every distribution that offers plugins or commands."""
        named = (name for name, dists in self.found.items() if any(map(self._offers, dists)))
        return sorted({"composer-core", *named} & set(self.found))

    # --- requirements ---

    def conflicts(self, roots: Iterable[str]) -> list[Defect]:
        """What `roots`, and all that they require, ask for and is not installed, or in another version."""
        defects: list[Defect] = []
        seen: set[tuple[str, str]] = set()
        todo: list[tuple[str, str]] = [(canonicalize_name(root), "") for root in roots]
        while todo:
            name, extra = todo.pop()
            if (name, extra) in seen or name not in self.found:
                continue
            seen.add((name, extra))
            dist = self.found[name][0]
            for text in dist.requires or ():
                try:
                    wanted = Requirement(text)
                    if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
                        continue
                    defects += self._unmet(dist, name, wanted)
                except ValueError as error:
                    defects.append(_unreadable(dist, name, text, error))
                else:
                    todo += [(canonicalize_name(wanted.name), part) for part in ("", *wanted.extras)]
        return sorted(set(defects), key=lambda defect: (defect.dist, defect.text))

    def _unmet(self, dist: metadata.Distribution, name: str, wanted: Requirement) -> list[Defect]:
        there = self.found.get(canonicalize_name(wanted.name))
        if there and wanted.specifier.contains(there[0].version, prereleases=True):
            return []
        has = f"{there[0].version} is installed" if there else "it is not installed"
        text = f"{dist.name} {dist.version} needs {wanted.name}{wanted.specifier}, {has}"
        return [Defect(name, text, f"pip install '{wanted.name}{wanted.specifier}'")]

    # --- stale metadata ---

    def stale(self) -> list[Defect]:
        """Distributions of ours that are there twice, whose editable folder has gone, or whose module is missing."""
        return [defect for name in self.ours() for defect in (*self._twice(name), *self._gone(name))]

    def _twice(self, name: str) -> list[Defect]:
        first, *others = self.found[name]
        shown = {(dist.version, tuple(map(str, self._offers(dist)))) for dist in (first, *others)}
        if len(shown) == 1:  # an editable install may leave equal metadata in its folder
            return []
        rest = ", ".join(f"{dist.version} of {_place(dist)}" for dist in others)
        text = f"{name} is there {len(others) + 1} times: {first.version} of {_place(first)} is in effect, not {rest}"
        return [Defect(name, text, f"pip uninstall {name}, until none is left, and install it once")]

    def _gone(self, name: str) -> list[Defect]:
        dist, again = self.found[name][0], AGAIN.format(name)
        folder = editable_folder(dist)
        if folder is not None and not folder.is_dir():
            return [Defect(name, f"{name} is an editable install of {folder}, which has gone", again)]
        modules = {entry.value.partition(":")[0]: entry for entry in self._offers(dist)}
        return [
            Defect(name, f"{name} offers {entry.name!r} in the module {module}, which is missing", again)
            for module, entry in modules.items()
            if not _exists(module)
        ]

    def _offers(self, dist: metadata.Distribution) -> list[metadata.EntryPoint]:
        return [entry for entry in dist.entry_points if entry.group in self.groups]


def _unreadable(dist: metadata.Distribution, name: str, text: str, error: ValueError) -> Defect:
    why = str(error).partition("\n")[0]
    return Defect(name, f"{dist.name} {dist.version} needs {text!r}, which cannot be read: {why}", AGAIN.format(name))


def editable_folder(dist: metadata.Distribution) -> Path | None:
    """The folder of an editable install, or None for a regular one."""
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    return Path(unquote(urlparse(origin["url"]).path)) if origin.get("dir_info", {}).get("editable") else None


def _place(dist: metadata.Distribution) -> Path:
    """The folder on the path that it was found in."""
    return Path(str(dist.locate_file(""))).resolve()


def _name(dist: metadata.Distribution) -> str:
    """Canonical; "" for the remains of one, which have none."""
    try:
        return canonicalize_name(dist.metadata["Name"] or "")
    except Exception:
        return ""


def _exists(module: str) -> bool:
    """Whether a module could be imported, without doing so; packages around it are."""
    try:
        return find_spec(module) is not None
    except Exception:
        return False
