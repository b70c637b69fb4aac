"""Weights, optimizer and counters as files, without pickle.

    weights.safetensors     the policy's state dict; samplers are given the same, or 16 bits of it (`masters`)
    optimizer.safetensors   AdamW's state, "field.parameter"
    reference.safetensors   the weights RL started from, when a KL term needs them
    trainer.json            stage and counters

There is no generator state: noise is a function of (seed, stage, step), so the counters are the random state. Each
file is written beside its name and moved there; the run's manifest makes the folder as a whole atomic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, frozen
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from composer_core.errors import StoreError

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
REFERENCE = "reference.safetensors"
COUNTERS = "trainer.json"


@frozen
class Counters:
    """Where the trainer is."""

    stage: str = ""
    steps: int = 0
    """Steps of the stage, skipped ones included; the noise of a step depends on it."""
    updates: int = 0
    """Updates of the stage that were applied; warm-up depends on it."""
    nonfinite_in_a_row: int = 0
    threads: int = 0
    """Threads of torch, which bytes depend on."""
    torch: str = ""
    """Version of torch, which bytes depend on."""


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """One safetensors file; tensors that share memory (tied weights) are written under each of their names."""
    seen: set[int] = set()
    owned = {}
    for name, tensor in tensors.items():
        host = tensor.detach().cpu().contiguous()
        address = host.untyped_storage().data_ptr()
        owned[name] = host.clone() if address in seen else host
        seen.add(address)
    partial = path.with_name(path.name + ".partial")
    save_file(owned, partial)
    os.replace(partial, path)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Raises StoreError when the file is missing or broken."""
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise StoreError("a checkpoint's tensors cannot be read", where=str(path), found=str(error)) from error


def write_counters(folder: Path, counters: Counters) -> None:
    partial = folder / (COUNTERS + ".partial")
    partial.write_text(json.dumps(asdict(counters), indent=2) + "\n", encoding="utf-8")
    os.replace(partial, folder / COUNTERS)


def read_counters(folder: Path) -> Counters:
    """Raises StoreError when the file is missing, broken or of another layout."""
    path = folder / COUNTERS
    try:
        return Counters(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError("a checkpoint's counters cannot be read", where=str(path), found=str(error)) from error


def load_weights(model: Any, path: Path) -> None:
    """Raises StoreError when the file does not hold this policy's weights."""
    tensors = read_tensors(path)
    try:
        model.load_state_dict(tensors)
    except (RuntimeError, KeyError) as error:
        raise StoreError("saved weights are of another policy", where=str(path), found=str(error)) from error
