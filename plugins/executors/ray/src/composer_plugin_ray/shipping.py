"""How published weights reach replicas: read from the run folder, or shipped through a store as differences.

Without a store a replica reads the file that the trainer wrote, which every process sees. With one, what travels is
mostly the difference to the version before (`weights`), and a replica that cannot rebuild a version has it sent whole.
No Ray here.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from composer_core.rundir import RunDir
from composer_core.types import WeightsRef
from composer_plugin_ray.config import RayConfig
from composer_plugin_ray.weights.publisher import WeightPublisher
from composer_plugin_ray.weights.receiver import WeightReceiver
from composer_plugin_ray.weights.store import WeightStore


class Sender:
    """The controller's end."""

    def __init__(self, config: RayConfig, run_dir: Path) -> None:
        self._run_dir, self._publisher = run_dir, None
        if config.weights_store:
            self._publisher = WeightPublisher(
                WeightStore(config.weights_store),
                run_dir / "shipping",
                full_every=config.weights_full_every,
                committed=self._committed,
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

    def _committed(self) -> Iterable[int]:
        commit = RunDir(self._run_dir).read_json("commit.json")
        return () if commit is None else (int(commit["weights"]["version"]),)


class Taker:
    """A replica's end."""

    def __init__(self, store: str, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._folder = tempfile.TemporaryDirectory(prefix="composer-weights-") if store else None
        self._receiver = WeightReceiver(WeightStore(store), Path(self._folder.name)) if self._folder else None

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
            self._folder.cleanup()
