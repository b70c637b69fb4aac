"""A booted machine kept for all that are cloned from it: one for each image, size of memory and monitor.

A cold boot takes seconds, a clone tens of milliseconds; so a machine is booted once, warmed (what commands need is in
its page cache), stopped for good, and its state kept in the cache folder. What the files are is the driver's business.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

from attrs import asdict, frozen

from composer_core.errors import BackendError
from composer_plugin_microvm.image import Image, Say
from composer_plugin_microvm.machine import Machine
from composer_plugin_microvm.tsc import tsc_khz

LAYOUT = 3
TRY_S = 0.05
CLOCK_SLACK = 0.01
"""How much the rate of the time-stamp counter may differ: a machine captured elsewhere would misjudge time."""
WARMING = (
    ("sh", "-c", "cat /etc/passwd | grep root; ls -la /; rm -f x; mkdir -p y; cp /etc/passwd y; find y; rm -r y"),
    ("python3", "-c", "import json, os, re, subprocess, sys, tempfile, unittest; print(1)"),
    ("git", "--version"),
    ("rg", "--version"),
    ("true",),
)
"""Run before a base is kept; those that an image does not have are no loss."""
WARM_LIMITS = {
    "memory_bytes": 96 << 20,
    "processes": 32,
    "file_bytes": 1 << 20,
    "disk_bytes": 1 << 20,
    "env": {},
}


@frozen
class Wanted:
    """What decides a base."""

    monitor: str
    """What runs it: its path or content."""
    version: str
    accel: str
    ram_bytes: int
    image: str
    line: str
    """The kernel's command line."""
    host: str
    """The processor's name: state of one is not loaded on another."""

    @classmethod
    def of(cls, monitor: str, version: str, accel: str, ram_bytes: int, image: Image, line: str) -> Wanted:
        with open("/proc/cpuinfo") as file:
            host = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
        return cls(monitor, version, accel, ram_bytes, image.key, line, host)

    @property
    def key(self) -> str:
        text = json.dumps([LAYOUT, asdict(self)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def version(command: str) -> str:
    """The first line that a program says of itself."""
    return _version(command, os.stat(command).st_mtime_ns)


@cache
def _version(command: str, changed_ns: int) -> str:
    """Of the program as it is since `changed_ns`."""
    done = subprocess.run([command, "--version"], capture_output=True, check=False, text=True, errors="replace")
    return next(iter(done.stdout.splitlines()), "")


class Boots(Protocol):
    """Makes one base."""

    async def boot(self, khz: int | None) -> Machine:
        """A machine that boots; `khz` is the rate of the host's time-stamp counter."""

    async def keep(self, machine: Machine, place: Path) -> None:
        """Stop it for good, at a moment when nothing is being said, and write its state into the folder."""


async def kept(want: Wanted, how: Boots, folder: Path, boot_s: float, say: Say) -> Path:
    """The folder of the base below the cache `folder`, made if it is not there yet. Raises BackendError."""
    found = folder / f"base-{want.key}"
    khz = await asyncio.to_thread(tsc_khz)
    async with alone_async(folder / f"{found.name}.lock"):
        if not _fits(found, khz):
            say(f"booting a machine of {want.ram_bytes >> 20} MiB ({want.accel}), once")
            await _make(found, how, boot_s, khz)
    return found


@asynccontextmanager
async def alone_async(path: Path) -> AsyncIterator[None]:
    """One process at a time; the event loop goes on while others hold the lock."""
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(TRY_S)
        yield


def _fits(folder: Path, khz: int | None) -> bool:
    try:
        kept = json.loads((folder / "info.json").read_text())["khz"]
    except (OSError, ValueError, KeyError):
        return False
    if kept is None or khz is None:
        return kept is khz
    return bool(abs(kept - khz) <= khz * CLOCK_SLACK)


async def _make(folder: Path, how: Boots, boot_s: float, khz: int | None) -> None:
    """Whole or not at all: written beside, then renamed."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as place:
        made = Path(place, "base")
        made.mkdir(mode=0o700)
        machine = await how.boot(khz)
        try:
            await machine.ping(boot_s)
            await _warm(machine)
            await machine.hold()
            await how.keep(machine, made)
        finally:
            await machine.close()
        (made / "info.json").write_text(json.dumps({"khz": khz}))
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(made, folder)


async def _warm(machine: Machine) -> None:
    await machine.channel.ask("settle", files=[], needs=[], limits=WARM_LIMITS)
    for argv in WARMING:
        words = json.dumps([argv, {}]).encode()
        header, _ = await machine.channel.ask(
            "exec", words, words=len(words), cwd="", timeout_s=20.0, output_bytes=1 << 16
        )
        if "error" in header:
            raise BackendError("a machine that has just booted runs no command", found=str(header["message"])[:300])
