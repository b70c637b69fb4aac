"""The machine behind the strict server: QEMU runs the kernel and the image that Firecracker was told to run.

What Firecracker says of snapshots holds here: a loaded machine's memory is a private mapping of the file; a "Full"
snapshot is all memory, a "Diff" only the pages that were written since the machine was loaded or last saved, at their
places in an otherwise empty file. Whoever forgets a page of them gets a broken machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import zlib
from pathlib import Path
from typing import Any

from composer_plugin_microvm import memory
from composer_plugin_microvm.initramfs import _entry
from composer_plugin_microvm.process import Process
from composer_plugin_microvm.qemu import GUEST_ENDS, STATE_SET, Hardware, less_power
from composer_plugin_microvm.qmp import Qmp
from composer_plugin_microvm.tsc import tsc_khz
from strict.api import Refused
from strict.bridge import Bridge

INIT = b"""#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
for module in virtio_ring virtio virtio_mmio virtio_blk virtio_console squashfs vsock \
    vmw_vsock_virtio_transport_common; do $b insmod /modules/$module.ko; done
$b insmod /strict/vsock_loopback.ko
while [ ! -b /dev/vda ] || [ -z "$(ls /sys/class/virtio-ports)" ]; do $b usleep 5000; done
$b mount -t squashfs -o ro /dev/vda /strict/root
port=/dev/$(ls /sys/class/virtio-ports)
(echo -1000 > /proc/self/oom_score_adj
 exec $b chroot /strict/root /usr/bin/python3 -I -S -B -c "$($b cat /strict/relay.py)" <>$port) &
$b umount /dev /sys /proc
exec /init
"""
PAGE = memory.PAGE
MAGIC = "strict-snapshot-1"


class Vm:
    """Made by `boot` or `load`; paused and resumed; saved while it is paused."""

    def __init__(self, hardware: Hardware, bridge: Bridge, info: dict[str, Any]) -> None:
        self.hardware, self.bridge, self.info = hardware, bridge, info
        self.process: Process
        self.qmp: Qmp
        self.ram = -1
        self.loaded = False
        self.reset_due = False
        self._seen: dict[int, bytes] = {}

    async def _start(self, extra: list[str], fds: list[int]) -> None:
        (agent, agent_theirs), (qmp, qmp_theirs) = socket.socketpair(), socket.socketpair()
        words = self.hardware.arguments(self.ram, shared=not self.loaded)
        words += ["-chardev", f"socket,id=agent,fd={agent_theirs.fileno()}"]
        words += ["-chardev", f"socket,id=qmp,fd={qmp_theirs.fileno()}", "-mon", "chardev=qmp,mode=control"]
        passed = [self.ram, self.hardware.root, agent_theirs.fileno(), qmp_theirs.fileno(), *fds]
        self.process = Process([*words, *extra], passed, less_power())
        agent_theirs.close()
        qmp_theirs.close()
        self.qmp = Qmp(qmp)
        await self.bridge.serve()
        await self.bridge.carry(agent)
        await asyncio.wait_for(self.qmp.ready, 20)
        await self.qmp.ask("qmp_capabilities")

    async def ended(self) -> int:
        """The status that Firecracker would end with."""
        status = await asyncio.shield(self.process.ended)
        self.qmp.drain()
        print(await self.process.last_words(), flush=True)
        return 0 if self.qmp.end_reason in GUEST_ENDS else status or 1

    @classmethod
    async def boot(cls, info: dict[str, Any], loopback: bytes) -> Vm:
        """`info` has what was configured."""
        hardware = Hardware("qemu-system-x86_64", None, info["mem_size_mib"] << 20, _opened(info["root"]))
        self = cls(hardware, Bridge(info["uds_path"]), info)
        self.ram = memory.memory_file("ram", hardware.ram_bytes)
        kernel = _opened(info["kernel_image_path"])
        if os.pread(kernel, 4, 0) != b"\x7fELF":
            raise Refused("Start microvm error: Cannot load kernel due to invalid memory configuration or format")
        first = memory.memory_file("initrd")
        os.write(first, Path(_inside(info["initrd_path"])).read_bytes() + _device(loopback))
        line = (
            f"{info['boot_args']} reboot=t mitigations=off tsc=reliable tsc_early_khz={tsc_khz()} rdinit=/strict/init"
        )
        files = ["-kernel", f"/proc/self/fd/{kernel}", "-initrd", f"/proc/self/fd/{first}", "-append", line]
        await self._start([*files, "-serial", "stdio"], [kernel, first])
        return self

    @classmethod
    async def load(cls, state: str, mem: str) -> Vm:
        """Paused. Raises Refused, after which Firecracker ends."""
        head, _, devices = Path(_inside(state)).read_bytes().partition(b"\n")
        info = json.loads(head)
        if info.pop("magic") != MAGIC or info.pop("crc") != zlib.crc32(devices):
            raise Refused("Load snapshot error: Failed to load snapshot state from file")
        source = _opened(mem)
        size = os.fstat(source).st_size
        if size != info["mem_size_mib"] << 20:
            raise Refused("Load snapshot error: Failed to load guest memory: size")
        hardware = Hardware("qemu-system-x86_64", None, size, _opened(info["root"]))
        self = cls(hardware, Bridge(info["uds_path"]), info)
        self.loaded = self.reset_due = True
        self.ram = memory.memory_file("ram", size)
        memory.copy_sparse(source, self.ram)
        memory.seal(self.ram)
        extra = ["-serial", "null", "-global", "migration.send-configuration=off", "-S", "-incoming", "defer"]
        await self._start(extra, [])
        with_state = memory.memory_file("state")
        os.write(with_state, devices)
        os.lseek(with_state, 0, os.SEEK_SET)
        passed = self.qmp.post("getfd", (with_state,), fdname="state")
        loaded = self.qmp.post("migrate-incoming", uri="fd:state")
        await self.qmp.answer(passed, "getfd")
        await self.qmp.answer(loaded, "migrate-incoming")
        while (await self.qmp.ask("query-status"))["status"] == "inmigrate":
            await asyncio.sleep(0.001)
        return self

    async def pause(self) -> None:
        await self.qmp.ask("stop")

    async def resume(self) -> None:
        await self.qmp.ask("cont")
        if self.reset_due:
            self.bridge.reset()
            self.reset_due = False

    async def save(self, kind: str, state: str, mem: str) -> None:
        self.bridge.cut()
        devices = await self._devices()
        self.info |= {"magic": MAGIC, "crc": zlib.crc32(devices)}
        Path(_inside(state)).write_bytes(json.dumps(self.info).encode() + b"\n" + devices)
        target = os.open(_inside(mem), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(target).st_size != self.hardware.ram_bytes:
                os.truncate(target, 0)
            os.truncate(target, self.hardware.ram_bytes)
            await asyncio.to_thread(self._memory, kind == "Full" or not self.loaded, target)
        finally:
            os.close(target)
        self.reset_due = True

    async def _devices(self) -> bytes:
        fd = memory.memory_file("devices")
        passed = memory.reopened(fd, os.O_WRONLY)
        await self.qmp.ask("add-fd", (passed,), fdset_id=STATE_SET)
        os.close(passed)
        await self.qmp.ask("xen-save-devices-state", filename=f"/dev/fdset/{STATE_SET}", live=False)
        await self.qmp.ask("remove-fd", fdset_id=STATE_SET)
        data = os.pread(fd, 1 << 26, 0)
        os.close(fd)
        return data

    def _memory(self, whole: bool, target: int) -> None:
        if whole:
            memory.copy_sparse(self.ram, target)
        if not self.loaded:
            return
        delta, place = memory.collect(_outer_pid(self.process.pid), self.hardware.ram_bytes), 0
        for start, length in delta.runs:
            for at in range(start, start + length, PAGE):
                data = os.pread(delta.fd, PAGE, place)
                place += PAGE
                digest = hashlib.blake2b(data, digest_size=16).digest()
                if whole or self._seen.get(at) != digest:
                    os.pwrite(target, data, at)
                self._seen[at] = digest
        delta.close()


def _device(loopback: bytes) -> bytes:
    """A further archive of the first stage: what stands in for the vsock device."""
    relay = Path(__file__).with_name("relay.py").read_bytes()
    parts = [_entry("strict", 0o040755), _entry("strict/root", 0o040755), _entry("strict/init", 0o100755, INIT)]
    parts += [_entry("strict/relay.py", 0o100644, relay), _entry("strict/vsock_loopback.ko", 0o100644, loopback)]
    return b"".join([*parts, _entry("TRAILER!!!", 0)])


def _inside(path: str) -> str:
    """In the jail, which is the working folder."""
    inner = path.lstrip("/")
    if ".." in inner.split("/"):
        raise Refused(f"{path} leads out of the jail")
    return inner


def _opened(path: str) -> int:
    try:
        return os.open(_inside(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"{path}: {error}") from error


def _outer_pid(pid: int) -> int:
    """As /proc has it, which is of another namespace."""
    fd = os.pidfd_open(pid)
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    finally:
        os.close(fd)
    return int(next(line.split()[1] for line in lines if line.startswith("Pid:")))
