"""The trainer's end: each version goes into the store as a difference to the one before it, or whole.

Whole is every n-th version, the first after a start, one whose layout changed, and one whose difference would not be
smaller. The version before is kept as a second name of its file (a hard link), so it costs no space until the run
removes its own. Everything blocks on one thread beside the event loop, one version at a time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import attrs

from composer_core.errors import StoreError
from composer_core.types import WeightsRef
from composer_plugin_ray.weights.chain import WHOLE, Chain, Held, Link
from composer_plugin_ray.weights.delta import FORMAT, write_delta
from composer_plugin_ray.weights.store import WeightStore
from composer_plugin_ray.weights.work import settled, sha256_of


def nothing_committed() -> Iterable[int]:
    return ()


class WeightPublisher:
    """Writes one chain; there is one publisher for a store at a time."""

    def __init__(
        self,
        store: WeightStore,
        folder: Path,
        *,
        full_every: int = 25,
        committed: Callable[[], Iterable[int]] = nothing_committed,
        threads: int = 1,
    ) -> None:
        """`folder` is the publisher's own, on the file system of the weights if links are to be free.

        `full_every` is the number of versions from one whole file to the next; 1 makes all whole. `committed` tells the
        versions that a run may resume from: what leads to them stays in the store.
        """
        self._chain, self._folder = Chain(store), folder
        self._full_every, self._committed, self._threads = full_every, committed, threads
        self._held: Held | None = None
        self._since_full = 0
        self._turn = asyncio.Lock()
        self._stats = dict.fromkeys(("whole", "deltas", "bytes", "publish_s"), 0.0)
        self.current: WeightsRef | None = None
        """What a sampler that joins now is to load."""

    async def publish(self, weights: WeightsRef, path: Path) -> WeightsRef:
        """Ship the file at `path`; returns the reference that receivers are given.

        Raises:
            StoreError: the store took it not, or the file is no safetensors file; the chain is as it was.
        """
        async with self._turn:
            return await settled(lambda: self._publish(weights, path))

    async def mend(self) -> WeightsRef:
        """Ship the current version whole, since a receiver could not rebuild it."""
        async with self._turn:
            return await settled(self._mend)

    def stats(self) -> Mapping[str, float]:
        """Whole files and differences shipped, their bytes, and the seconds that took."""
        return dict(self._stats)

    def _publish(self, weights: WeightsRef, path: Path) -> WeightsRef:
        started = time.perf_counter()
        before = self._held
        if before is None or weights.version <= before.version:
            before = None
            self._chain.forget(weights.version)
        held = self._keep(weights, path)
        link = (self._delta(held, before) if before else None) or self._whole(held)
        self._held = held
        self._since_full = 0 if link.base is None else self._since_full + 1
        self._tidy(held)
        with suppress(StoreError):  # the version is out; the next one removes what is left
            self._chain.prune({link.version, *([before.version] if before else ()), *self._committed()})
        return self._done(link, started)

    def _mend(self) -> WeightsRef:
        assert self._held is not None, "nothing was published yet"
        started = time.perf_counter()
        link = self._whole(self._held)
        self._since_full = 0
        return self._done(link, started)

    def _keep(self, weights: WeightsRef, path: Path) -> Held:
        """A name of our own for the file, which nobody else removes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = self._folder / f"{weights.version}.safetensors"
        kept.unlink(missing_ok=True)
        try:
            os.link(path, kept)
        except OSError:  # another file system
            shutil.copyfile(path, kept)
        return Held(weights.version, weights.checksum or sha256_of(kept), kept)

    def _delta(self, held: Held, before: Held) -> Link | None:
        if self._since_full + 1 >= self._full_every:
            return None
        made = self._folder / "delta"
        sha256 = write_delta(held.path, before.path, made, self._threads)
        if sha256 is None:
            return None
        return self._ship(_link(held, FORMAT, sha256, made, before), made)

    def _whole(self, held: Held) -> Link:
        return self._ship(_link(held, WHOLE, held.checksum, held.path), held.path)

    def _ship(self, link: Link, path: Path) -> Link:
        self._chain.add(link, path)
        return link

    def _tidy(self, held: Held) -> None:
        for path in self._folder.iterdir():
            if path != held.path:
                path.unlink(missing_ok=True)

    def _done(self, link: Link, started: float) -> WeightsRef:
        self._stats["whole" if link.base is None else "deltas"] += 1
        self._stats["bytes"] += link.size_bytes
        self._stats["publish_s"] += time.perf_counter() - started
        self.current = link.ref
        return link.ref


def _link(held: Held, format: str, sha256: str, path: Path, before: Held | None = None) -> Link:
    link = Link(
        version=held.version,
        checksum=held.checksum,
        format=format,
        uri=f"{held.version}-{sha256[:16]}.{'safetensors' if before is None else 'delta'}",
        sha256=sha256,
        size_bytes=path.stat().st_size,
    )
    return attrs.evolve(link, base=before.version, base_checksum=before.checksum) if before else link
