"""One QEMU process: its arguments, the two sockets it inherits, how it starts, is captured and ends.

A machine is either booted (kernel and initramfs, its RAM shared with a memory file that becomes a base) or cloned from
a capture (the base mapped privately, pages that differ written in, the devices' state loaded). Both have the same
devices: the root image, read-only and shared by all, and one serial port to the agent. No network card, no display.

QEMU runs as nobody where this process is root, without capabilities, under its own seccomp filter that forbids it to
start anything. It is handed descriptors and opens no path of its own but those of its firmware, and /dev/kvm (`kvm`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence

from attrs import frozen

from composer_core.errors import BackendError
from composer_plugin_microvm import memory
from composer_plugin_microvm.channel import Channel
from composer_plugin_microvm.kvm import NOBODY, Access
from composer_plugin_microvm.process import Process
from composer_plugin_microvm.qmp import Qmp

READY_S = 20.0
EMULATED = "max,-la57,-erms"
"""What TCG emulates: all it can but a fifth level of page tables, which each translation of an address would walk, and
copies of bytes said to be fast, which the kernel then takes for whole pages and TCG does byte by byte."""
ROOT_SET, STATE_SET = 1, 2
"""Numbers of QEMU's descriptor sets for the root image and for the devices' state."""
DENIED = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
GUEST_ENDS = ("guest-reset", "guest-shutdown", "guest-panic")


@frozen
class Hardware:
    """What is the same for a base and all that is cloned from it."""

    qemu: str
    kvm: Access | None
    """None is TCG."""
    ram_bytes: int
    root: int
    """Descriptor of the root image."""

    def arguments(self, ram: int, shared: bool) -> list[str]:
        """Of QEMU, without what starts it and its sockets. `ram` is a descriptor that it inherits."""
        words = [self.qemu, "-M", "microvm,memory-backend=ram,graphics=off,suppress-vmdesc=on"]
        words += ["-accel", "kvm", "-cpu", "host"] if self.kvm else ["-accel", "tcg,tb-size=128", "-cpu", EMULATED]
        words += ["-smp", "1", "-m", f"{self.ram_bytes >> 20}"]
        backend = f"memory-backend-file,id=ram,size={self.ram_bytes},mem-path=/proc/self/fd/{ram}"
        words += ["-object", f"{backend},share={'on' if shared else 'off'}"]
        words += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-sandbox", DENIED]
        drive = f"id=root,if=none,format=raw,readonly=on,file.locking=off,file=/dev/fdset/{ROOT_SET}"
        words += ["-add-fd", f"fd={self.root},set={ROOT_SET}", "-drive", drive]
        words += ["-device", "virtio-blk-device,drive=root", "-device", "virtio-serial-device"]
        return [*words, "-device", "virtserialport,chardev=agent,name=composer.agent"]


@frozen
class Base:
    """What captures are taken against; one for each image and size of memory."""

    hardware: Hardware
    ram: int
    """Descriptor of a sealed memory file, mapped privately by every clone."""

    def close(self) -> None:
        os.close(self.ram)
        os.close(self.hardware.root)


@frozen
class QemuCapture:
    """A machine's state at one moment: the devices', and pages against the base."""

    base: Base
    devices: int
    """Descriptor of what QEMU saved."""
    delta: memory.Delta

    @property
    def size_bytes(self) -> int:
        return self.delta.size_bytes

    def close(self) -> None:
        os.close(self.devices)
        self.delta.close()


class Qemu:
    """A `Monitor`: a running QEMU. `base` None is one that boots, and is not saved but kept."""

    def __init__(self, hardware: Hardware, base: Base | None) -> None:
        self.ram_bytes = hardware.ram_bytes
        self.base = base
        self.channel = Channel()
        self.qmp: Qmp
        self.process: Process

    @classmethod
    async def start(
        cls, hardware: Hardware, ram: int, extra: Sequence[str], base: Base | None = None, fds: Sequence[int] = ()
    ) -> Qemu:
        """Spawn it and wait until QEMU answers. `extra` may name the descriptors `fds`."""
        self = cls(hardware, base)
        (agent, agent_theirs), (qmp, qmp_theirs) = socket.socketpair(), socket.socketpair()
        try:
            words = hardware.arguments(ram, shared=base is None)
            words += ["-chardev", f"socket,id=agent,fd={agent_theirs.fileno()}"]
            words += ["-chardev", f"socket,id=qmp,fd={qmp_theirs.fileno()}", "-mon", "chardev=qmp,mode=control"]
            theirs = [ram, hardware.root, agent_theirs.fileno(), qmp_theirs.fileno(), *fds]
            access = hardware.kvm or Access()
            self.process = Process([*words, *extra], theirs, less_power(access.groups), before=access.words())
        except OSError as error:
            agent.close()
            qmp.close()
            raise BackendError("QEMU cannot be started", where=hardware.qemu, found=str(error)) from error
        finally:
            agent_theirs.close()
            qmp_theirs.close()
        self.qmp = Qmp(qmp)
        try:
            await self.channel.open(agent)
            async with asyncio.timeout(READY_S):
                await self.qmp.ready
            await self.qmp.ask("qmp_capabilities")
        except BaseException as error:
            said = await self.process.last_words() if isinstance(error, Exception) else ""
            await self.close()
            if isinstance(error, BackendError | TimeoutError):
                raise BackendError("QEMU did not start a machine", found=said or str(error)) from error
            raise
        return self

    async def last_words(self) -> str:
        return await self.process.last_words()

    def guest_ended_itself(self) -> bool:
        self.qmp.drain()
        return self.qmp.end_reason in GUEST_ENDS

    async def halt(self) -> None:
        await self.qmp.ask("stop")

    async def go_on(self) -> None:
        await self.qmp.ask("cont")

    async def save(self) -> Callable[[], QemuCapture]:
        """Devices and pages are both taken while it is stopped: a page is its own until it goes on."""
        base = self.base
        assert base is not None
        await self.halt()
        try:
            devices = await self.save_devices()
            try:
                delta = await asyncio.to_thread(memory.collect, self.process.pid, self.ram_bytes)
            except BaseException:
                os.close(devices)
                raise
        finally:
            await self.go_on()
        return lambda: QemuCapture(base, devices, delta)

    async def save_devices(self) -> int:
        """A descriptor of what QEMU tells of the devices of a stopped machine."""
        fd = memory.memory_file("devices")
        try:
            passed = memory.reopened(fd, os.O_WRONLY)  # QEMU looks for a descriptor of just this kind in the set
            try:
                await self.qmp.ask("add-fd", (passed,), fdset_id=STATE_SET)
            finally:
                os.close(passed)
            await self.qmp.ask("xen-save-devices-state", filename=f"/dev/fdset/{STATE_SET}", live=False)
            await self.qmp.ask("remove-fd", fdset_id=STATE_SET)
            memory.seal(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @classmethod
    async def clone(cls, capture: QemuCapture) -> Qemu:
        """A machine that goes on from a capture."""
        extra = ["-serial", "null", "-global", "migration.send-configuration=off", "-incoming", "defer"]
        self = await cls.start(capture.base.hardware, capture.base.ram, extra, capture.base)
        try:
            await asyncio.to_thread(memory.lay, capture.delta, self.process.pid, self.ram_bytes)
            state = memory.reopened(capture.devices)
            try:
                passed = self.qmp.post("getfd", (state,), fdname="state")
                loaded = self.qmp.post("migrate-incoming", uri="fd:state")
            finally:
                os.close(state)
            await self.qmp.answer(passed, "getfd")
            await self.qmp.answer(loaded, "migrate-incoming")
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        try:
            await self.process.close()
        finally:
            self.channel.end("the machine was closed")
            self.qmp.close()


def less_power(groups: Sequence[int] = ()) -> list[str]:
    """Words of `setpriv`: nobody, in these groups beside its own."""
    if os.geteuid() != 0:
        return []
    also = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    return [f"--reuid={NOBODY}", f"--regid={NOBODY}", also, "--inh-caps=-all", "--bounding-set=-all"]
