"""What lies in the store: for each version a small record, and the file of weights or differences that it names.

The file is written first and never changes, since its name holds its checksum; the record makes the version exist. So a
kill leaves the chain as it was, plus at most a file that no record names, which the next `prune` removes. Removal goes
the other way round: first the record, then the file.

A record tells the checksums of its file, of the weights it leads to, and of the weights it starts from, so that a
version that was published twice (a run resumed before it) is never mixed up with its namesake.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from attrs import asdict, frozen

from composer_core.errors import StoreError
from composer_core.types import WeightsRef
from composer_plugin_ray.weights.store import WeightStore

WHOLE = "safetensors"


@frozen
class Held:
    """Weights that a receiver has already."""

    version: int
    checksum: str
    path: Path


@frozen
class Link:
    """One version, and how to get there."""

    version: int
    checksum: str
    """sha256 of the safetensors file of this version."""
    format: str
    """safetensors for a whole file, else `delta.FORMAT`."""
    uri: str
    """Name of the file in the store."""
    sha256: str
    """Of the file in the store; equal to `checksum` for a whole one."""
    size_bytes: int
    """Of the file in the store."""
    base: int | None = None
    """Version that differences are applied to."""
    base_checksum: str = ""
    """sha256 of the safetensors file of that version."""

    @property
    def ref(self) -> WeightsRef:
        return WeightsRef(self.version, self.uri, self.checksum, self.format, self.base)


@frozen
class Chain:
    """The records of one store."""

    store: WeightStore

    def add(self, link: Link, path: Path) -> None:
        """Put the file there, and make its version exist, in place of one of the same number."""
        self.store.put_file(link.uri, path)
        self.store.put(_record(link.version), json.dumps(asdict(link)).encode())

    def link(self, version: int) -> Link:
        """Raises StoreError where there is no such version, or its record is damaged."""
        data = self.store.get(_record(version))
        try:
            return Link(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise StoreError(f"the record of weights {version} is damaged", where=self.store.url) from error

    def route(self, version: int, held: Held | None = None) -> list[Link]:
        """The links that lead to a version, from the one whose base is held or that is whole.

        Raises:
            StoreError: a link is missing.
        """
        links = [self.link(version)]
        while (base := links[-1].base) is not None:
            first = links[-1]
            if held and (held.version, held.checksum) == (base, first.base_checksum):
                break
            links.append(self.link(base))
        return links[::-1]

    def versions(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self.store.names() if name.endswith(".json"))
        return sorted(int(name) for name in names if name.isdigit())

    def forget(self, least: int) -> None:
        """Versions from this one on never were: a publisher that starts there makes them anew."""
        self.store.sweep()
        for version in self.versions():
            if version >= least:
                self.store.delete(_record(version))

    def prune(self, wanted: Iterable[int]) -> None:
        """Remove all versions but these and those that lead to them, and files that no record names."""
        there, kept = set(self.versions()), dict[int, Link]()
        for version in wanted:
            step: int | None = version
            while step in there and step not in kept and (link := self._whole_record(step)):
                kept[step], step = link, link.base
        for version in there - kept.keys():
            self.store.delete(_record(version))
        named = {link.uri for link in kept.values()}
        for name in self.store.names():
            if not name.endswith(".json") and name not in named:
                self.store.delete(name)

    def _whole_record(self, version: int) -> Link | None:
        try:
            return self.link(version)
        except StoreError:
            return None


def _record(version: int) -> str:
    return f"{version}.json"
