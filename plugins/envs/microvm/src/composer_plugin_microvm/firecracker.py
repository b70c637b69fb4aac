"""One Firecracker process: how it is jailed and started, what it is told, how it is saved and ended.

A machine is either booted (and saved whole, once) or loaded: its memory is a file that Firecracker maps privately, so
that many machines share what none of them has changed. Saving one that lives asks for a "diff" snapshot, which holds
the pages that were written since it was loaded or last saved; put over the memory it had then, that is a whole memory
again. Firecracker ends all vsock connections of a machine that is saved, so the channel is left before and opened again
after.

Source: firecracker.yaml, docs/snapshotting/snapshot-support.md and docs/jailer.md of Firecracker 1.13 to 1.16.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from composer_core.errors import BackendError
from composer_plugin_microvm import rest, vsock
from composer_plugin_microvm.channel import Channel
from composer_plugin_microvm.guest import VSOCK_PORT
from composer_plugin_microvm.jail import (
    API,
    LOG,
    MAX_DEVICES,
    METRICS,
    SAVED_DEVICES,
    SAVED_MEMORY,
    VSOCK,
    Jail,
    Kept,
    RunFolder,
)
from composer_plugin_microvm.process import Process

READY_S = 20.0
TRY_S = 0.002
REACH_S = 20.0
"""How long the agent of a machine that goes on may take to be reached again."""
LAST_BYTES = 2000
FAULTS = ("seccomp", "signals", "vcpu", "vmm")
"""Groups of metrics whose counters are of what befell Firecracker (docs/metrics.md)."""
GUEST_CID = 3
"""Of every machine: numbers of vsock are a machine's own here."""


class Firecracker:
    """A `Monitor`: a running Firecracker."""

    def __init__(self, run: RunFolder, jail: Jail, process: Process, ram_bytes: int, gone: Callable[[], None]) -> None:
        """`gone` is called when nothing of it is left."""
        self.ram_bytes = ram_bytes
        self.channel = Channel()
        self.process = process
        self.api = rest.Api(jail.fd, API)
        self._run, self._jail, self._gone = run, jail, gone
        self._closed = False
        self._before = -1
        """Descriptor of the memory that it had when it was loaded or last saved; -1 if that is not known."""

    @classmethod
    def start(
        cls, run: RunFolder, jail: Jail, words: Sequence[str], ram_bytes: int, gone: Callable[[], None]
    ) -> Firecracker:
        """Raises OSError."""
        folder = jail.root if jail.user < 0 else Path("/")  # the jailer brings it to its root
        try:
            process = Process(words, cwd=folder)
        except BaseException:
            jail.close()
            raise
        return cls(run, jail, process, ram_bytes, gone)

    async def ready(self) -> None:
        """Wait until it listens, and let it say what it does."""
        end = time.monotonic() + READY_S
        while not rest.there(self._jail.fd, API):
            if self.process.ended.done() or time.monotonic() > end:
                raise BackendError("Firecracker did not start")
            await asyncio.sleep(TRY_S)
        await self.api.ask("PUT", "/logger", {"log_path": LOG, "level": "Warning"})
        await self.api.ask("PUT", "/metrics", {"metrics_path": METRICS})

    async def boot(self, line: str, patience_s: float) -> None:
        """Boot the image of the run folder."""
        ask = self.api.ask
        await ask("PUT", "/machine-config", {"vcpu_count": 1, "mem_size_mib": self.ram_bytes >> 20})
        source = {"kernel_image_path": "vmlinux", "initrd_path": "initrd", "boot_args": line}
        await ask("PUT", "/boot-source", source)
        drive = {"drive_id": "root", "path_on_host": "root", "is_root_device": False, "is_read_only": True}
        await ask("PUT", "/drives/root", drive)
        await ask("PUT", "/vsock", {"guest_cid": GUEST_CID, "uds_path": VSOCK})
        await ask("PUT", "/entropy", {})
        await ask("PUT", "/actions", {"action_type": "InstanceStart"})
        await self._reach(patience_s)

    async def load(self) -> None:
        """Go on from the files `mem` and `state` of its jail."""
        self._before = os.open("mem", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._jail.fd)
        memory = {"backend_type": "File", "backend_path": "mem"}
        what = {"snapshot_path": "state", "mem_backend": memory, "track_dirty_pages": True, "resume_vm": True}
        await self.api.ask("PUT", "/snapshot/load", what)
        await self._reach(REACH_S)

    async def _reach(self, patience_s: float) -> None:
        found = await vsock.connect(self._jail.fd, VSOCK, VSOCK_PORT, patience_s, self.process.ended)
        await self.channel.open(found)

    # --- saved ----------------------------------------------------------------------------------------------------

    async def save(self) -> Callable[[], Kept]:
        kind = "Full" if self._before < 0 else "Diff"
        before, self._before = self._before, -1  # what it saves it does not save again, whatever becomes of it
        try:
            await self.pause()
            try:
                saved, devices = await self.write(kind)
            finally:
                await self.go_on()
        except BaseException:
            _close(before)
            raise
        try:
            await self._reach(REACH_S)
        except BaseException as error:
            for fd in (before, saved, devices):
                _close(fd)
            if isinstance(error, BackendError) and not self.process.ended.done():
                raise TimeoutError("its agent is not reached again") from error  # which is its guest's doing
            raise
        return lambda: self._merge(before, saved, devices)

    async def pause(self) -> None:
        """Stop it; nothing is being said, and the agent waits for another connection."""
        self.channel.unplug()
        await self.halt()

    async def halt(self) -> None:
        await self.api.ask("PATCH", "/vm", {"state": "Paused"})

    async def go_on(self) -> None:
        await self.api.ask("PATCH", "/vm", {"state": "Resumed"})

    async def write(self, kind: str) -> tuple[int, int]:
        """Descriptors of memory and devices of a stopped machine."""
        what = {"snapshot_type": kind, "snapshot_path": SAVED_DEVICES, "mem_file_path": SAVED_MEMORY}
        await self.api.ask("PUT", "/snapshot/create", what)
        saved = self._jail.take(SAVED_MEMORY, self.ram_bytes)
        try:
            return saved, self._jail.take(SAVED_DEVICES, MAX_DEVICES)
        except BaseException:
            os.close(saved)
            raise

    def _merge(self, before: int, saved: int, devices: int) -> Kept:
        try:
            kept = self._run.merge(self.ram_bytes, before, saved, devices)
        finally:
            for fd in (before, saved, devices):
                _close(fd)
        if not self._closed:
            self._before = os.open(kept.folder / "mem", os.O_RDONLY | os.O_CLOEXEC)
        return kept

    # --- told, ended ----------------------------------------------------------------------------------------------

    async def version(self) -> str:
        said = await self.api.ask("GET", "/version")
        return f"v{said['firecracker_version'].removeprefix('v')}"

    async def last_words(self) -> str:
        """The end of its log, and which of its counters of faults are not zero: it writes them when it ends."""
        said = await self.process.last_words()
        log = self._jail.said(LOG)[-LAST_BYTES:].decode(errors="replace")
        return "\n".join(filter(None, [said, log.strip(), counted(self._jail.said(METRICS))]))

    def guest_ended_itself(self) -> bool:
        """Firecracker ends with 0 when its guest resets, as a panic does here, and not when it fails itself."""
        return self.process.ended.done() and self.process.ended.result() == 0

    async def close(self) -> None:
        self._closed = True
        try:
            await self.process.close()
        finally:
            self.channel.end("the machine was closed")
            self.api.close()
            _close(self._before)
            self._before = -1
            self._jail.close()
            self._gone()


def counted(said: bytes) -> str:
    """Counters of faults that are not zero, of the last whole line of metrics."""
    for line in reversed(said.splitlines()):
        try:
            found = json.loads(line)
            pairs = [(group, *pair) for group in FAULTS for pair in found.get(group, {}).items()]
        except (ValueError, AttributeError, RecursionError):
            continue
        return " ".join(f"{group}.{name}={count}" for group, name, count in pairs if type(count) is int and count)
    return ""


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
