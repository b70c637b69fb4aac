"""Who computes: Triton kernels or plain torch, chosen by the setting `implementation` and the tensors' device.

Plain torch is `reference`, and on a CPU `values`: the same numbers bit for bit, held as the fp32 values they stand for.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import Any

import torch

from composer_plugin_mxfp8 import support
from composer_plugin_mxfp8.ops import Ops

LOG = logging.getLogger(__name__)


_LOADED: dict[str, Ops] = {}
"""The modules that were chosen; a compiled graph finds them here."""


def choose(implementation: str, device: torch.device) -> Ops:
    """The module that computes on `device`.

    A graph that is being compiled looks at no value, so plain torch is `reference` in it, on a CPU too.

    Raises:
        RuntimeError: "triton" was asked for and cannot run there.
    """
    return _LOADED[_load(implementation, device, torch.compiler.is_compiling())]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _load(implementation: str, device: torch.device, compiling: bool) -> str:
    name = _named(implementation, device)
    if name == "values" and compiling:
        name = "reference"
    if name not in _LOADED:
        module: Any = import_module(f"composer_plugin_mxfp8.{name}")
        _LOADED[name] = module
    return name


@cache
def _named(implementation: str, device: torch.device) -> str:
    """kernels, values or reference; what "auto" takes for a device is logged once, where Python shows it unasked."""
    reason = None if implementation == "reference" else support.why_not(device)
    if implementation == "auto" and support.interpreting():
        reason = "TRITON_INTERPRET makes Triton a debugger"
    if implementation == "triton" and reason:
        raise RuntimeError(f'implementation = "triton" cannot run: {reason}; choose "auto" or "reference"')
    plain = bool(reason) or implementation == "reference"
    if implementation == "auto":
        took, why = ("reference" if plain else "triton"), (f", since {reason}" if reason else "")
        LOG.warning("MXFP8 on %s: implementation auto took %s%s", device, took, why)
    return ("values" if device.type == "cpu" else "reference") if plain else "kernels"
