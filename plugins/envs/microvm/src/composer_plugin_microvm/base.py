"""A booted machine kept for all that are cloned from it: one for each image, size of memory and QEMU.

A cold boot takes seconds, a clone tens of milliseconds; so a machine is booted once, warmed (what commands need is in
its page cache), captured, and ended. Its memory and its devices' state are kept in the cache folder. A process that
uses them reads the memory into a sealed memory file of its own: nobody, not even a machine that has broken out into its
QEMU, can write what others are made of.
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

from attrs import asdict, define, frozen

from composer_core.errors import BackendError
from composer_plugin_microvm import memory
from composer_plugin_microvm.image import Image, Say
from composer_plugin_microvm.machine import KERNEL_LINE, Capture, Hardware, Machine
from composer_plugin_microvm.tsc import tsc_khz

LAYOUT = 1
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
"""Run before a base is captured; those that an image does not have are no loss."""
WARM_LIMITS = {
    "memory_bytes": 96 << 20,
    "processes": 32,
    "file_bytes": 1 << 20,
    "disk_bytes": 1 << 20,
    "env": {},
}


@define
class Base:
    """What clones are made of."""

    hardware: Hardware
    ram: int
    """Descriptor of a sealed memory file, mapped privately by every clone."""
    booted: Capture
    """The machine just after its boot; its delta is empty."""

    def close(self) -> None:
        os.close(self.ram)
        os.close(self.hardware.root)
        self.booted.close()


@frozen
class Wanted:
    """What decides a base."""

    qemu: str
    version: str
    accel: str
    ram_bytes: int
    image: str
    host: str
    """The processor's name: state of one is not loaded on another."""
    line: str = KERNEL_LINE

    @property
    def key(self) -> str:
        text = json.dumps([LAYOUT, asdict(self)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def wanted(qemu: str, accel: str, ram_bytes: int, image: Image) -> Wanted:
    version = _version(qemu, os.stat(qemu).st_mtime_ns)
    with open("/proc/cpuinfo") as file:
        host = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    return Wanted(qemu, version, accel, ram_bytes, image.key, host)


@cache
def _version(qemu: str, changed_ns: int) -> str:
    """Of the program as it is since `changed_ns`."""
    said = subprocess.run([qemu, "--version"], capture_output=True, check=True, text=True).stdout
    return said.splitlines()[0]


async def base(want: Wanted, image: Image, cache: Path, boot_s: float, say: Say) -> Base:
    """The base, booted if it is not kept yet. Its root image stays open until `close`. Raises BackendError."""
    folder = cache / f"base-{want.key}"
    root = os.open(image.root, os.O_RDONLY | os.O_CLOEXEC)
    hardware = Hardware(want.qemu, want.accel, want.ram_bytes, root)
    try:
        khz = await asyncio.to_thread(tsc_khz)
        async with alone_async(cache / f"{folder.name}.lock"):
            if not _fits(folder, khz):
                say(f"booting a machine of {want.ram_bytes >> 20} MiB ({want.accel}), once")
                await _boot(hardware, image, folder, boot_s, khz)
        return await asyncio.to_thread(_load, hardware, folder)
    except BaseException:
        os.close(root)
        raise


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


async def _boot(hardware: Hardware, image: Image, folder: Path, boot_s: float, khz: int | None) -> None:
    ram = memory.memory_file("ram", hardware.ram_bytes)
    line = KERNEL_LINE if khz is None else f"{KERNEL_LINE} tsc_early_khz={khz}"
    kernel, first = (os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (image.kernel, image.initramfs))
    try:
        files = ["-kernel", f"/proc/self/fd/{kernel}", "-initrd", f"/proc/self/fd/{first}"]
        extra = [*files, "-append", line, "-serial", "stdio"]
        machine = await Machine.start(hardware, ram, extra, shared=True, fds=(kernel, first))
        try:
            await machine.ping(boot_s)
            await _warm(machine)
            devices = await machine.freeze()
        finally:
            await machine.close()
        try:
            await asyncio.to_thread(_keep, ram, devices, folder, khz)
        finally:
            os.close(devices)
    finally:
        for fd in (ram, kernel, first):
            os.close(fd)


async def _warm(machine: Machine) -> None:
    await machine.channel.ask("settle", files=[], needs=[], limits=WARM_LIMITS)
    for argv in WARMING:
        words = json.dumps([argv, {}]).encode()
        header, _ = await machine.channel.ask(
            "exec", words, words=len(words), cwd="", timeout_s=20.0, output_bytes=1 << 16
        )
        if "error" in header:
            raise BackendError("a machine that has just booted runs no command", found=str(header["message"])[:300])


def _keep(ram: int, devices: int, folder: Path, khz: int | None) -> None:
    """Whole or not at all: written beside, then renamed."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as place:
        made = Path(place, "base")
        made.mkdir(mode=0o700)
        for name, source in (("ram", ram), ("devices", devices)):
            with open(made / name, "xb") as file:
                os.truncate(file.fileno(), os.fstat(source).st_size)
                memory.copy_sparse(source, file.fileno())
                os.fsync(file.fileno())
        (made / "info.json").write_text(json.dumps({"khz": khz}))
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(made, folder)


def _load(hardware: Hardware, folder: Path) -> Base:
    ram, devices = _sealed(folder / "ram", "ram"), _sealed(folder / "devices", "devices")
    if os.fstat(ram).st_size != hardware.ram_bytes:
        raise BackendError("a kept machine is damaged", where=str(folder), fix="remove the folder")
    return Base(hardware, ram, Capture(devices, memory.Delta(memory.memory_file("delta"), (), 0)))


def _sealed(path: Path, name: str) -> int:
    with open(path, "rb") as file:
        fd = memory.memory_file(name, os.fstat(file.fileno()).st_size)
        memory.copy_sparse(file.fileno(), fd)
    memory.seal(fd)
    return fd
