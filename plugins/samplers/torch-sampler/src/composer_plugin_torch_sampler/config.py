"""Settings of the sampler. Thin: read by `check`, so no torch here."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, field, frozen, validators


def _threads(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{attribute.name} must be at least 1, found {value}")


@frozen
class ContinuousConfig:
    """Continuous batching in one process."""

    slots: int = field(default=128, validator=validators.ge(1))
    """Sessions whose KV stays resident; one more session evicts the least recently used idle one, or waits."""
    context_tokens: int = field(default=1024, validator=validators.ge(2))
    """Window of one session; a generation that fills it stops with "context"."""
    prefill_tokens: int = field(default=2048, validator=validators.ge(8))
    """Most tokens of one prefill pass, padding included; longer prompts take several passes."""
    prefill_wait: int = field(default=2, validator=validators.ge(0))
    """Decode steps for which arrived prompts may wait for company, while others decode."""
    kv_on_swap: str = field(default="keep", validator=validators.in_(("keep", "recompute")))
    """What happens to resident KV when weights are swapped: kept (and flagged), or computed again."""
    threads: int | None = field(default=1, validator=_threads)
    """Intra-op threads of torch on the sampler's thread; None leaves torch's own choice. One, because a second OpenMP
    team beside the trainer's makes both wait in the kernel: measured 2.3 times slower on 2 cores."""
