"""The ranks of one trainer: what they add up, and who is named when one of them is gone.

Legend: N entries of a rank, M of all ranks.

Each rank is a process that somebody else has started, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. All make
the same calls in the same order, since each of `begin`, `step`, `save` and `load` may wait for the others.

A rank that fails writes why into the store that all ranks met at, and leaves, which ends the others' waiting at once.
One that is killed or hangs writes nothing: those who waited for it (connections break, or `timeout_s` passes) say that
they are awake, and blame whoever does not say so within `GRACE_S`. A group that has lost a rank is never used again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from accelerate.utils import broadcast
from torch import distributed
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from composer_core.errors import ComposerError, TrainerError

GRACE_S = 10.0
"""How long a survivor waits for another's word before it counts as gone."""


class _Deserted(Exception):
    """What all ranks were to do together has failed here."""


class Ranks:
    """One rank's tie to the others; with one rank everything here is free."""

    def __init__(self, accelerator: Any) -> None:
        self.rank: int = accelerator.process_index
        self.count: int = accelerator.num_processes
        self._accelerator = accelerator
        self._store: Any = _store() if self.count > 1 else None
        self._ended = ""

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.count}"

    # --- what all ranks do together -------------------------------------------------------------------------------

    def share(self, tensors: list[torch.Tensor]) -> None:
        """Every rank's tensors become those of rank 0."""
        with self._together(), torch.no_grad():
            for tensor in tensors if self.count > 1 else ():
                broadcast(tensor)

    def sum(self, tensors: list[torch.Tensor]) -> None:
        """Replace each tensor by its sum over ranks, in one message; equal bytes on every rank."""
        if self.count == 1 or not tensors:
            return
        with self._together():
            flat = self._accelerator.reduce(torch.cat([tensor.flatten() for tensor in tensors]), reduction="sum")
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def gather(self, values_N: torch.Tensor) -> torch.Tensor:
        """Every rank's values, none of which may be negative but which may be no numbers, one behind the other: [M]."""
        if self.count == 1:
            return values_N
        with self._together():
            padded = self._accelerator.pad_across_processes(values_N, pad_index=-1)
            values_M: torch.Tensor = self._accelerator.gather(padded)
        return values_M[~(values_M < 0)]

    def meet(self) -> None:
        """Wait for all."""
        with self._together():
            self._accelerator.wait_for_everyone()

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self.count == 1:
                raise
            raise _Deserted from error

    # --- who is gone ----------------------------------------------------------------------------------------------

    @contextmanager
    def named(self) -> Iterator[None]:
        """Around all that this rank does: an error inside names the rank whose failure it was, and ends the group.

        Raises:
            TrainerError: another rank is gone, this one failed, or the group had ended before.
        """
        if self.count == 1:
            yield
            return
        if self._ended:
            raise TrainerError("the ranks have lost one of them", found=self._ended, fix="start all of them anew")
        try:
            yield
        except _Deserted as error:
            self._ended = self._blamed()
            self.leave()
            raise TrainerError(self._ended, where=self.name, found=str(error.__cause__).partition("\n")[0]) from error
        except Exception as error:
            self._ended = f"{self.name} failed: {error if str(error) else type(error).__name__}"
            with suppress(DistNetworkError):
                self._store.set(f"failed/{self.rank}", self._ended)
            self.leave()
            if isinstance(error, ComposerError):
                error.fields.setdefault("who", self.name)
                raise
            raise TrainerError(self._ended, who=self.name) from error

    def _blamed(self) -> str:
        others = [rank for rank in range(self.count) if rank != self.rank]
        try:
            self._store.set(f"awake/{self.rank}", "")
            told = self._reasons(others)
            silent = [rank for rank in others if not self._awake(rank)] if not told else []
            told = told or self._reasons(others)
        except DistNetworkError:
            told, silent = [], [0]  # it serves the store
        names = ", ".join(f"rank {rank} of {self.count}" for rank in silent)
        return told[0] if told else f"{names} is gone" if names else "the ranks have lost touch with each other"

    def _reasons(self, others: list[int]) -> list[str]:
        """What those have written down who failed."""
        keys = [f"failed/{rank}" for rank in others]
        return [self._store.get(key).decode() for key in keys if self._store.check([key])]

    def _awake(self, rank: int) -> bool:
        try:
            self._store.wait([f"awake/{rank}"], timedelta(seconds=GRACE_S))
        except DistStoreError:
            return False
        return True

    def leave(self) -> None:
        """Safe twice. Whoever still waits for this rank is woken."""
        if self.count > 1 and distributed.is_initialized():
            with suppress(RuntimeError):
                distributed.destroy_process_group()


def _store() -> Any:
    """Another client of the store at which the ranks have met."""
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=GRACE_S),
    )
    return PrefixStore("composer", store)
