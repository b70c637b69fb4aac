"""What a component takes on a machine, told by its record before anything is built.

A record's `footprint` is a `Footprint`, or the "module:attr" of a thin function `(config, run) -> Footprint | None`
that imports no torch; None means that it cannot tell for these settings, and `check` says so instead of guessing. `run`
is a `RunView`. Models are asked first: what they tell of the network stands in `run.model_size`, so that a sampler or a
trainer of one plugin counts with the network of another.

All numbers are estimates in bytes of host memory at its peak, with the model on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import Factory, frozen

__all__ = [
    "Footprint",
    "ModelSize",
    "Process",
]


@frozen
class ModelSize:
    """What a policy network weighs."""

    parameters: int
    weight_bytes: int
    """One copy of the weights."""
    kv_bytes: int
    """Keys and values of one cached token, over all layers."""
    trained_bytes: int
    """What forward keeps of one token for backward, and backward adds, the head excepted."""
    forward_bytes: int
    """Most that one token takes at a time in a forward pass without gradient."""
    pair_bytes: int
    """The same for a pair of a new token and a cached one, where a row has several new tokens (the mask)."""
    decode_pair_bytes: int
    """The same where every row has one (the mask, and scores of all heads)."""
    vocabulary: int
    """Width of a row of logits."""
    route_bytes: int = 0
    """Expert ids of one token, over all layers; 0 for a dense model."""


@frozen
class Process:
    """Processes of one sort that a component starts beside the run's own."""

    name: str
    most: int
    """How many there are at once at most."""
    peak_bytes: int
    """Of each."""
    capped: bool = False
    """Whether `peak_bytes` is a cap that is enforced, and no estimate."""


@frozen
class Footprint:
    """What one component takes; the default is nothing worth counting."""

    parts: Mapping[str, int] = Factory(dict)
    """What it holds in the run's own process -> bytes."""
    imports: Mapping[str, int] = Factory(dict)
    """Packages it imports, in order -> bytes that each adds; counted once, whoever else imports them."""
    processes: tuple[Process, ...] = ()
    files: Mapping[str, int] = Factory(dict)
    """Path below the run folder -> bytes at the end of the run."""
    checkpoint_bytes: int = 0
    """A trainer's: one checkpoint."""
    model: ModelSize | None = None
    """A model's own."""
