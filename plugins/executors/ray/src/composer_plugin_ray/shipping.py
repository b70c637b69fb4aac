"""How published weights reach replicas: read from the run folder, or shipped through a store as differences.

Without a store a replica reads the file that the trainer wrote, which every process sees. With one, what travels is
mostly the difference to the version before (`weights`), and a replica that cannot rebuild a version has it sent whole.
No Ray here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from composer_core.errors import StoreError
from composer_core.types import WeightsRef
from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.weights.publisher import WeightPublisher
from composer_plugin_ray.weights.receiver import WeightReceiver
from composer_plugin_ray.weights.store import WeightStore

THREADS = max(1, min(8, len(os.sched_getaffinity(0)) // 2))
"""That make and apply differences: half of the cores, since the others compute meanwhile."""
OWN = "shipping"
"""Folder below the run folder that holds a second name of the file that was published last."""


class Sender:
    """The controller's end."""

    def __init__(self, config: RayConfig, run_dir: Path) -> None:
        self._run_dir, self._publisher = run_dir, None
        self.store = ""
        """What replicas are told of the store."""
        if config.weights_store:
            store = WeightStore(located(config.weights_store, run_dir))
            self.store = store.url
            self._publisher = WeightPublisher(
                store,
                run_dir / OWN,
                full_every=config.weights_full_every,
                committed=self._committed,
                threads=THREADS,
            )

    async def send(self, weights: WeightsRef) -> WeightsRef:
        """What replicas are to load."""
        if self._publisher is None:
            return weights
        return await self._publisher.publish(weights, self._run_dir / weights.uri)

    async def mend(self, weights: WeightsRef) -> WeightsRef:
        """The same, whole: a replica could not rebuild it."""
        return await self._publisher.mend() if self._publisher else weights

    def stats(self) -> Mapping[str, float]:
        found = self._publisher.stats() if self._publisher else {}
        return {f"weights_{name}": value for name, value in found.items()}

    def close(self) -> None:
        """Leave nothing on this machine, also not what a replica left that was killed; what is in the store stays."""
        replicas = _folder(self._run_dir, "*")
        for folder in (self._run_dir / OWN, *replicas.parent.glob(replicas.name)):
            shutil.rmtree(folder, ignore_errors=True)

    def _committed(self) -> Iterable[int]:
        try:
            commit = json.loads((self._run_dir / "commit.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return ()
        return (int(commit["weights"]["version"]),)


class Taker:
    """A replica's end: with a store, its weights lie on its own machine.

    The folder's name is that of the run and the replica's place, so the successor of one that was killed goes on from
    what it left, and nothing piles up.
    """

    def __init__(self, store: str, run_dir: Path, place: int) -> None:
        self._run_dir = run_dir
        self._folder = _private(_folder(run_dir, str(place))) if store else None
        self._receiver = WeightReceiver(WeightStore(store), self._folder, threads=THREADS) if self._folder else None

    @asynccontextmanager
    async def file(self, weights: WeightsRef) -> AsyncIterator[Path]:
        """The safetensors file of these weights, while the context is open.

        Raises:
            WeightsDamaged: it has to be sent whole.
        """
        if self._receiver is None:
            yield self._run_dir / weights.uri
        else:
            async with self._receiver.weights(weights) as path:
                yield path

    def close(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def located(store: str, run_dir: Path) -> str:
    """The store of a run: a path that is not whole is one below the run folder, wherever the run was started from."""
    path = Path(store).expanduser()
    return store if "://" in store or path.is_absolute() else str(run_dir / path)


def _folder(run_dir: Path, place: str) -> Path:
    run = hashlib.sha256(bytes(run_dir)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"composer-weights-{os.getuid()}-{run}-{place}"


def _private(folder: Path) -> Path:
    """Make it, for this user alone.

    Raises:
        StoreError: somebody else was there first.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StoreError("the folder for a replica's weights is somebody else's", who="ray/ray", where=str(folder))
    return folder
