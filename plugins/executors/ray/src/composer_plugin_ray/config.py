"""Settings of `ray/ray`."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge, gt


@frozen
class RayConfig:
    """Settings beside `executor.use` in the run file."""

    address: str = ""
    """Of a running Ray cluster, "HOST:PORT" or "auto"; "" starts one on this machine and ends it with the run."""
    workers: int = field(default=2, validator=gt(0))
    """Processes that run episodes; they never import torch."""
    episodes_per_worker: int = field(default=64, validator=gt(0))
    """Episodes in flight in one worker at most."""
    sampler_replicas: int = field(default=1, validator=gt(0))
    """Processes that hold the policy and continue token ids; a group stays with one of them."""
    trainer_ranks: int = field(default=1, validator=gt(0))
    """Processes that train together."""
    weights_store: str = ""
    """Folder of any fsspec file system (/shared/weights, s3://bucket/run; "shipped" is one below the run folder) by
    which weights are shipped, mostly as differences to the version before; "" lets replicas read them from the run
    folder."""
    weights_full_every: int = field(default=25, validator=gt(0))
    """With a store, versions from one that is shipped whole to the next."""
    environments: bool = False
    """One environment server on each node with workers, which serves the run's sandbox to them; needs the plugin
    `server`. Without it each worker has its sandboxes in its own process."""
    keep_turns: bool = False
    """Episodes write down what they have sampled, turn by turn: one that is lost with its process is not sampled again
    from its first token, but has its tools run again up to where it was."""
    worker_cpus: float = field(default=1.0, validator=ge(0))
    """CPU cores that Ray reserves for a worker."""
    replica_cpus: float = field(default=1.0, validator=ge(0))
    """CPU cores that Ray reserves for a sampler replica."""
    rank_cpus: float = field(default=1.0, validator=ge(0))
    """CPU cores that Ray reserves for a trainer rank."""
    replica_gpus: float = field(default=0.0, validator=ge(0))
    """GPUs that Ray reserves for a sampler replica."""
    rank_gpus: float = field(default=0.0, validator=ge(0))
    """GPUs that Ray reserves for a trainer rank."""
    object_store_bytes: int = field(default=256 << 20, validator=ge(80 << 20))
    """Shared memory of the cluster that address = "" starts."""
    start_timeout_s: float = field(default=180.0, validator=gt(0))
    """For the cluster, and then for each process, to be ready."""
    publish_timeout_s: float = field(default=600.0, validator=gt(0))
    """For a replica to load new weights; one that takes longer is ended and started anew."""
    answer_timeout_s: float = field(default=60.0, validator=gt(0))
    """For a worker or a replica to say that it is there, or to take note of who came or went; one that takes longer is
    ended and started anew."""
    episode_timeout_s: float = field(default=3600.0, validator=gt(0))
    """For an episode, whatever it waits for (a sandbox that never answers); then it is void. Counted from its start."""
    close_timeout_s: float = field(default=20.0, validator=gt(0))
    """For a process to put away what it holds when the run ends; then it is killed."""
    restarts_per_hour: int = field(default=20, validator=ge(0))
    """Processes lost within an hour that are started anew; one more ends the run and names them."""
