"""The process a trainer runs in: ranks and device through accelerate, threads, noise, deterministic kernels.

`torch.use_deterministic_algorithms` and the number of threads belong to the process or thread; deterministic mode is
put back by `close`. Ranks are started by whoever starts the processes (an executor, torchrun); this joins them, and
`close` leaves them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from attrs import evolve

from composer_core.errors import ConfigError
from composer_core.noise import key_of
from composer_core.protocols import BuildContext
from composer_plugin_policy.checkpoint import Counters
from composer_plugin_policy.config import PolicyTrainerConfig
from composer_plugin_policy.ranks import Ranks


class Machine:
    """Where tensors live and how bytes are kept the same."""

    def __init__(self, config: PolicyTrainerConfig, build: BuildContext) -> None:
        self._deterministic = build.deterministic
        self._before = torch.are_deterministic_algorithms_enabled()
        if build.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats bytes only with its own space
            torch.use_deterministic_algorithms(True)
        keep_large_blocks()
        # Said in every case: a new thread would take the number that another one, the sampler's say, has chosen last.
        torch.set_num_threads(build.settings.get("threads") or len(os.sched_getaffinity(0)))
        precision = "bf16" if config.precision == "bf16" else "no"
        group = InitProcessGroupKwargs(timeout=timedelta(seconds=config.rank_timeout_s))
        self.accelerator: Any = Accelerator(
            cpu=not torch.cuda.is_available(), mixed_precision=precision, kwargs_handlers=[group]
        )
        self.ranks = Ranks(self.accelerator)

    def place(self, model: Any) -> Any:
        """The policy on this rank's device, with the weights of rank 0."""
        model.to(self.accelerator.device)
        self.ranks.share(list(model.state_dict().values()))
        return model

    @contextmanager
    def noise(self, seed: int, counters: Counters) -> Iterator[None]:
        """Draws inside (dropout) depend on (seed, stage, step, rank) alone, and leave the process's generator alone."""
        device = self.accelerator.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(key_of(seed, counters.stage, counters.steps, self.ranks.rank))
            yield

    def stamp(self, counters: Counters) -> Counters:
        """Record what bytes depend on."""
        return evolve(counters, threads=torch.get_num_threads(), torch=torch.__version__)

    def check(self, counters: Counters, folder: Path) -> None:
        """Raises ConfigError when a deterministic run could not carry on with the same bytes."""
        here = self.stamp(counters)
        if self._deterministic and here != counters:
            raise ConfigError(
                "a deterministic run cannot carry on here with identical bytes",
                where=str(folder),
                expected=f"torch {counters.torch} on {counters.threads} threads",
                found=f"torch {here.torch} on {here.threads} threads",
                fix="set threads to the recorded number and install the recorded torch",
            )

    def close(self) -> None:
        self.ranks.leave()
        if self._deterministic:
            torch.use_deterministic_algorithms(self._before)


def keep_large_blocks() -> None:
    """Let glibc keep freed tensors: by default each large one goes back to the kernel and is faulted in again.

    Measured on 2 cores: 15 % of a training step of the tiny mixture. Without glibc this does nothing.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, (1 << 31) - 1)
