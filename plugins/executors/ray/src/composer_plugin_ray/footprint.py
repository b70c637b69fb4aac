"""What the processes of a Ray run take on the controller's machine, for `check`; thin.

Measured as proportional set sizes on Linux. Sampler and trainer tell their own; further replicas and ranks have copies.
"""

from __future__ import annotations

from composer_core import Footprint, RunView
from composer_core.footprint import Process
from composer_plugin_ray.config import RayConfig

IMPORT_BYTES = 60 << 20
WORKER_BYTES = 100 << 20
CLUSTER_BYTES = 300 << 20
"""Ray's own processes: store of states, raylet, agents."""


def footprint(config: RayConfig, run: RunView) -> Footprint:
    """With an address the cluster is somebody else's, and where it puts workers is not known."""
    if config.address:
        return Footprint(imports={"ray": IMPORT_BYTES})
    cluster = Process("Ray itself", 1, CLUSTER_BYTES)
    store = Process("Ray's object store", 1, config.object_store_bytes, capped=True)
    workers = Process("worker of ray/ray", config.workers, WORKER_BYTES)
    return Footprint(imports={"ray": IMPORT_BYTES}, processes=(cluster, store, workers))
