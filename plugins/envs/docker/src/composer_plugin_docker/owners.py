"""Whose a container is, so that what a killed run left is removed by the next one and nobody else's ever is.

An owner is a process: machine, boot, pid namespace, pid, and when it started. One of another machine, or of another pid
namespace of this boot, cannot be judged from here and is left alone.
"""

from __future__ import annotations

import os
from pathlib import Path


def this_process() -> str:
    return "/".join([*_place(), str(os.getpid()), _started(os.getpid())])


def has_ended(owner: str) -> bool:
    """Whether the process surely is no more."""
    parts = owner.split("/")
    machine, boot, namespace = _place()
    if len(parts) != 5 or not parts[3].isdigit() or parts[0] != machine:
        return False
    if parts[1] != boot:
        return True
    return parts[2] == namespace and _started(int(parts[3])) != parts[4]


def _place() -> tuple[str, str, str]:
    boot = _text("/proc/sys/kernel/random/boot_id")
    namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return _text("/etc/machine-id") or boot, boot, namespace


def _started(pid: int) -> str:
    """Clock ticks after boot, "" if there is no such process."""
    return (_text(f"/proc/{pid}/stat").rpartition(")")[2].split() or [""] * 20)[19]


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
