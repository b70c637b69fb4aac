"""A sampler's end: any published version as a local file that has the right checksum, by the shortest way.

What is held already is the base of what comes next. One that joins late or missed versions applies all differences in
one pass. Nothing damaged is loaded: each file that comes from the store is compared with its record, and the result
with the version's own checksum. Where that fails the base is not trusted any more, and the last whole file and what
follows it are fetched; where that fails too, `WeightsDamaged` asks for the version to be published whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from composer_core.errors import StoreError
from composer_core.types import WeightsRef
from composer_plugin_ray.weights.chain import Chain, Held, Link
from composer_plugin_ray.weights.delta import apply_deltas
from composer_plugin_ray.weights.store import WeightStore
from composer_plugin_ray.weights.work import settled, sha256_of

PART = ".part"


class WeightsDamaged(StoreError):
    """A version cannot be rebuilt from what the store holds; publish it whole."""


class WeightReceiver:
    """Holds one version in a folder of its own; a receiver that starts in an old one's folder goes on from it."""

    def __init__(self, store: WeightStore, folder: Path, *, threads: int = 1) -> None:
        self._chain, self._folder, self._threads = Chain(store), folder, threads
        self._turn = asyncio.Lock()
        self._held: Held | None = None
        self._opened = False
        self._stats = dict.fromkeys(("whole", "deltas", "bytes", "refused"), 0.0)

    @asynccontextmanager
    async def weights(self, ref: WeightsRef) -> AsyncIterator[Path]:
        """The file of a version; it stays while the context is open.

        Raises:
            WeightsDamaged: what the store holds does not lead to these weights.
        """
        async with self._turn:
            yield await settled(lambda: self._receive(ref))

    def stats(self) -> Mapping[str, float]:
        """Whole files and differences fetched, their bytes, and how often something was refused."""
        return dict(self._stats)

    def _receive(self, ref: WeightsRef) -> Path:
        if not self._opened:
            self._open()
        if self._held is None or self._held.checksum != ref.checksum:
            self._held = self._rebuilt(ref)
            self._tidy(self._held.path)
        return self._held.path

    def _rebuilt(self, ref: WeightsRef) -> Held:
        if self._held is not None:
            try:
                return self._built(ref, self._held)
            except StoreError:
                self._refuse()
        try:
            return self._built(ref, None)
        except StoreError as error:
            self._refuse()
            raise WeightsDamaged(
                f"weights {ref.version} cannot be rebuilt: {error}",
                where=self._chain.store.url,
                fix="publish this version whole",
            ) from error

    def _refuse(self) -> None:
        """Trust nothing that is here."""
        self._stats["refused"] += 1
        self._held = None
        self._tidy()

    def _built(self, ref: WeightsRef, held: Held | None) -> Held:
        links = self._chain.route(ref.version, held)
        if links[-1].checksum != ref.checksum:
            raise StoreError("another version of that number", expected=ref.checksum, found=links[-1].checksum)
        files = [self._fetched(link) for link in links]
        base = held.path if links[0].base is not None and held else files.pop(0)
        target = self._folder / f"{ref.version}-{ref.checksum}.safetensors"
        if files:
            part = self._folder / f"{target.name}{PART}"
            found = apply_deltas(base, files, part, self._threads)
            if found != ref.checksum:
                raise StoreError("the rebuilt weights are others", expected=ref.checksum, found=found)
            base = part
        base.replace(target)
        return Held(ref.version, ref.checksum, target)

    def _fetched(self, link: Link) -> Path:
        """Raises StoreError for a file that is not the one of its record."""
        path = self._folder / f"{link.uri}{PART}"
        self._chain.store.get_file(link.uri, path)
        self._stats["whole" if link.base is None else "deltas"] += 1
        self._stats["bytes"] += path.stat().st_size
        found = sha256_of(path)
        if found != link.sha256:
            raise StoreError(f"weights {link.uri} are damaged", expected=link.sha256, found=found)
        return path

    def _open(self) -> None:
        """Go on from what an earlier process left, if it is whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._folder.glob("*-*.safetensors")):
            version, _, checksum = path.stem.partition("-")
            if version.isdigit() and sha256_of(path) == checksum:
                self._held = Held(int(version), checksum, path)
        self._tidy(self._held.path if self._held else None)
        self._opened = True

    def _tidy(self, kept: Path | None = None) -> None:
        for path in self._folder.iterdir():
            if path != kept:
                path.unlink(missing_ok=True)
