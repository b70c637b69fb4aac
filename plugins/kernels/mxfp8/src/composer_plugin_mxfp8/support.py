"""Where the Triton kernels run: the one place that states it; `pyproject.toml` repeats it and a test compares them.

Read by whoever resolves `implementation`. `kernels` itself asks for the versions while it is imported, so that an old
Triton ends in a sentence and not in a compiler's trace.
"""

from __future__ import annotations

import os
from importlib import metadata

import torch

TRITON = ((3, 6), (3, 10))
"""First version that works, first that was not tried. 3.6 and 3.9 are tested."""
TORCH = ((2, 11), (2, 15))
"""As above; 2.11 and 2.13 are tested. Older ones lack parts of the grouped product that results are compared with."""
CAPABILITY = (8, 0)
"""Oldest GPU: bf16 products. E4M3 instructions come with 8.9, and Hopper (9.0) is what the figures are measured on."""


def interpreting() -> bool:
    """Whether Triton was told to run its kernels in Python, which needs no GPU (`TRITON_INTERPRET=1`)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in {"1", "true", "on", "y", "yes"}


def wrong_version() -> str | None:
    """Why the versions at hand cannot run the kernels, with what to install; None if they can."""
    for name, (first, beyond) in (("triton", TRITON), ("torch", TORCH)):
        expected = f"{name}>={first[0]}.{first[1]},<{beyond[0]}.{beyond[1]}"
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"{name} is not installed; install {expected!r}"
        if not first <= _numbers(found) < beyond:
            return f"{name} {found} is outside the supported range; install {expected!r}"
    return None


def why_not(device: torch.device) -> str | None:
    """Why the Triton kernels cannot run on tensors of `device`; None if they can."""
    if reason := wrong_version():
        return reason
    if interpreting():
        return None
    if device.type != "cuda":
        return f"Triton needs a CUDA device and the tensors are on {device.type!r}"
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} has compute capability {found}, below {CAPABILITY}"
    return None


def why_not_here() -> str | None:
    """Why they can run on no device of this machine; None if they can."""
    return why_not(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
