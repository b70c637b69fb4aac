"""A Ray cluster to place processes in: one that runs already, or one of our own that ends with the run.

Our own listens on this machine alone, without a dashboard and without telling anybody of its use. `ray.init` blocks for
seconds and takes SIGTERM for itself on the main thread, so it runs on another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

# Ray reads these when it is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from attrs import define

from composer_core.errors import ConfigError
from composer_plugin_ray.config import RayConfig


@define
class Cluster:
    """The connection of this process."""

    config: RayConfig
    _ours: bool = False

    async def open(self) -> None:
        """Connect; a connection that this process already has is used as it is.

        Raises:
            ConfigError: no cluster answers at the address, or none can be started.
        """
        if ray.is_initialized():
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        self._ours = True
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                await asyncio.to_thread(lambda: ray.init(**self._arguments()))
        except Exception as error:  # bare ones too: Ray gives up after 30 s without its node
            fix = 'name a running cluster ("HOST:PORT"), or leave it out to start one on this machine'
            raise ConfigError(
                "Ray does not start" if not self.config.address else "no Ray cluster lets us in",
                where="executor.address",
                found=f"{self.config.address or 'a cluster of our own'}: {type(error).__name__}: {error}",
                fix=f"{fix}; a cluster with tokens needs RAY_AUTH_MODE=token and its token here too (docs.ray.io)",
            ) from error

    def _arguments(self) -> Mapping[str, Any]:
        common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if self.config.address:
            return {**common, "address": self.config.address}
        store = self.config.object_store_bytes
        return {
            **common,
            "address": "local",
            "num_cpus": self._cpus(),
            "include_dashboard": False,
            "object_store_memory": store,
        }

    def _cpus(self) -> int:
        """What the run's processes reserve, whatever the machine has: it has nothing else to run."""
        config = self.config
        asked = [
            (config.workers, config.worker_cpus),
            (config.sampler_replicas, config.replica_cpus),
            (config.trainer_ranks, config.rank_cpus),
        ]
        return max(1, -int(-sum(count * cpus for count, cpus in asked) // 1))

    async def close(self) -> None:
        """Safe twice; only what `open` opened is closed."""
        if self._ours:
            self._ours = False
            await asyncio.to_thread(ray.shutdown)
